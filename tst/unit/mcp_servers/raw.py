# ruff: noqa: D103 - their names say what they do
"""Servers without the SDK, most of them bad: the first argument says what one does. A line of JSON each way.

Its one tool is `act`, with an integer `count` and anything else; what it answers is the behaviour's to say.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

ACT = {
    "name": "act",
    "description": "Do it.",
    "inputSchema": {"type": "object", "properties": {"count": {"type": "integer"}}},
}
DISCOVERED = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
Message = dict[str, Any]


def write(message: Any) -> None:
    raw(json.dumps(message).encode() + b"\n")


def raw(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def note(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def read() -> Message:
    line = sys.stdin.buffer.readline()
    if not line:
        raise EOFError
    return json.loads(line)


def answer(request: Message, result: Any) -> None:
    if "discover" in sys.argv and isinstance(result, dict):
        result = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private", **result}
    write({"jsonrpc": "2.0", "id": request["id"], "result": result})


def refuse(request: Message, code: int, message: str) -> None:
    write({"jsonrpc": "2.0", "id": request["id"], "error": {"code": code, "message": message}})


def text(said: str) -> Message:
    return {"content": [{"type": "text", "text": said}]}


def initialized(request: Message, version: str = "2025-06-18") -> None:
    answer(
        request,
        {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": {"name": "raw", "version": "1"}},
    )


def serve(
    call: Callable[[Message], None] = lambda request: answer(request, text("done")),
    *,
    tools: Callable[[Message], None] = lambda request: answer(request, {"tools": [ACT]}),
    initialize: Callable[[Message], None] = initialized,
) -> None:
    try:
        while True:
            message = read()
            method = message.get("method")
            if method == "initialize":
                initialize(message)
            elif method == "tools/list":
                tools(message)
            elif method == "tools/call":
                call(message)
            elif method == "server/discover" and "discover" in sys.argv:
                answer(message, DISCOVERED)
            elif "id" in message and method:
                refuse(message, -32601, "Method not found")
    except EOFError:
        pass


def forever() -> None:
    while True:
        time.sleep(1000)


def folder(request: Message) -> None:
    """Writes a file where it was started, and says where that is."""
    with open("notes.txt", "w"):
        pass
    answer(request, text(os.getcwd()))


def answers_when_all_have_come(request: Message) -> None:
    """As many calls as the first one's `count` says are under way before it answers any."""
    count = request["params"]["arguments"]["count"]
    for called in [request, *(read() for _ in range(count - 1))]:
        answer(called, text(f"{count} at once"))


def ends(code: int) -> Callable[[Message], None]:
    def end(_: Message) -> None:
        note("Traceback (most recent call last):")
        note("ValueError: the database is gone")
        os._exit(code)

    return end


def answers_and_ends(request: Message) -> None:
    answer(request, text("the last one"))
    os._exit(5)


def is_killed(_: Message) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def hangs(request: Message) -> None:
    note("waiting for a lock")
    if len(sys.argv) > 2:
        with open(sys.argv[2], "w") as file:
            file.write("it has said so")
    if request["method"] == "tools/call" and request["params"]["arguments"].get("count") == 1:
        answer(request, text("not yet"))


def stays() -> None:
    """Heeds neither the end of its input nor SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    serve(lambda request: answer(request, text(str(os.getpid()))))
    forever()


def ends_when_told() -> None:
    """Writes down what has ended it: its input, where it heeds that, or SIGTERM."""

    def end(file: str) -> None:
        with open(file, "w"):
            pass
        os._exit(0)

    signal.signal(signal.SIGTERM, lambda *_: end("told.txt"))
    serve()
    if "with_its_input" in sys.argv:
        end("ended.txt")
    forever()


def floods_a_line(_: Message) -> None:
    while True:
        raw(b"x" * 65536)


def floods_lines(_: Message) -> None:
    progress = {"progressToken": 1, "progress": 1}
    line = json.dumps({"jsonrpc": "2.0", "method": "notifications/progress", "params": progress})
    while True:
        raw(line.encode() + b"\n")


def floods_answers(request: Message) -> None:
    while True:
        answer({"id": request["id"] - 1}, {})


def floods_text(_: Message) -> None:
    while True:
        raw(b"not a message\n" * 1000)


def floods_stderr(request: Message) -> None:
    for _ in range(3000):
        sys.stderr.buffer.write(b"y" * 100_000)
    note("that was all")
    answer(request, text("done"))


def chatters(request: Message) -> None:
    raw(b"Server running on stdio\n\n")
    raw(b'{"level": "info", "message": "a call"}\n')
    raw(b"\xff\xfe\n")
    answer(request, text("done"))


def answers(line: Callable[[int], bytes]) -> Callable[[Message], None]:
    return lambda request: raw(line(request["id"]) + b"\n")


def asks(request: Message) -> None:
    """Asks all that a server may ask, and answers with what it was told."""
    told: list[str] = []
    for method, params in (
        ("ping", {}),
        ("roots/list", {}),
        ("sampling/createMessage", {"messages": [], "maxTokens": 1}),
        ("elicitation/create", {"message": "who?", "requestedSchema": {"type": "object", "properties": {}}}),
        ("no/such", {}),
    ):
        write({"jsonrpc": "2.0", "id": method, "method": method, "params": params})
        while (message := read()).get("id") != method:
            pass
        told.append(f"{method}: {'result' if 'result' in message else message['error']['message']}")
    answer(request, text("\n".join(told)))


def notifies(request: Message) -> None:
    for method, params in (
        ("notifications/tools/list_changed", {}),
        ("notifications/message", {"level": "warning", "data": "the stock is low"}),
        ("notifications/progress", {"progressToken": request["id"], "progress": 0.5}),
        ("notifications/progress", "nonsense"),
        ("notifications/of_another_kind", {"a": 1}),
        ("notifications/cancelled", {"requestId": 99}),
    ):
        write({"jsonrpc": "2.0", "method": method, "params": params})
    answer(request, text("done"))


def starts_others(request: Message) -> None:
    """Starts a child, a grandchild, and one that has left the process group and lost its parent."""
    ignore = "trap '' TERM HUP; " if "stubborn" in sys.argv else ""
    script = f"{ignore}sleep 1000 & echo $!; exec sleep 1000"
    child = subprocess.Popen(["sh", "-c", script], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    grandchild = child.stdout.readline().decode().strip()
    detached = subprocess.run(
        ["setsid", "sh", "-c", f"{ignore}sleep 1000 >/dev/null 2>&1 & echo $!"], stdout=subprocess.PIPE, check=True
    )
    answer(request, text(f"{os.getpid()} {child.pid} {grandchild} {detached.stdout.decode().strip()}"))


def starts_others_and_ends(request: Message) -> None:
    starts_others(request)
    os._exit(7)


def waits_for_three_and_ends(_: Message) -> None:
    for _ in range(2):
        read()
    os._exit(9)


def hangs_on_one(request: Message) -> None:
    if request["params"]["arguments"].get("count") != 1:
        answer(request, text(str(os.getpid())))


def needs_file() -> None:
    if not os.path.exists(sys.argv[2]):
        os._exit(8)
    OTHERWISE["pid"]()


def hangs_at_start_and_says_pid() -> None:
    with open(sys.argv[2], "w") as file:
        file.write(str(os.getpid()))
    forever()


def records() -> None:
    """Writes down what it is sent, and does not answer calls."""
    with open("received.jsonl", "w") as file:
        for line in sys.stdin:
            file.write(line)
            file.flush()
            message = json.loads(line)
            if message.get("method") == "initialize":
                initialized(message)
            elif message.get("method") == "tools/list":
                answer(message, {"tools": [ACT]})


def goes_deaf() -> None:
    """Reads no more once it has listed its tools."""

    def lists(request: Message) -> None:
        answer(request, {"tools": [ACT]})
        forever()

    serve(tools=lists)


def closes_stdin(request: Message) -> None:
    os.close(0)
    answer(request, text("the last one"))
    forever()


def takes_leave() -> None:
    serve()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raw(b"bye\n" * 5_000_000)
    with open("left.txt", "w"):
        pass


def tells() -> None:
    note(f"the key is {os.environ['KEY']}")
    os._exit(6)


def lists_on_and_on(request: Message) -> None:
    cursor = int(request["params"].get("cursor") or 0) if request.get("params") else 0
    answer(request, {"tools": [], "nextCursor": str(cursor + 1)})


def lists_in_a_circle(request: Message) -> None:
    answer(request, {"tools": [ACT], "nextCursor": "again"})


def needs_no_handshake(request: Message) -> None:
    supported = {"supported": ["2026-07-28"], "requested": "2025-11-25"}
    error = {"code": -32022, "message": "no", "data": supported}
    write({"jsonrpc": "2.0", "id": request["id"], "error": error})


def _json(result: Any) -> Callable[[int], bytes]:
    return lambda number: json.dumps({"jsonrpc": "2.0", "id": number, "result": result}).encode()


def _text(written: bytes) -> Callable[[int], bytes]:
    """A text as it is written in JSON."""
    return lambda number: _json(text("TEXT"))(number).replace(b"TEXT", written)


def _structured(written: bytes) -> Callable[[int], bytes]:
    return lambda number: _json({"content": [], "structuredContent": {"n": 7654321}})(number).replace(
        b"7654321", written
    )


STRUCTURED = {**ACT, "outputSchema": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}}
IN_CALL: dict[str, Callable[[Message], None]] = {
    "ends": ends(4),
    "answers_and_ends": answers_and_ends,
    "answers_when_all_have_come": answers_when_all_have_come,
    "is_killed": is_killed,
    "hangs": hangs,
    "floods_a_line": floods_a_line,
    "floods_lines": floods_lines,
    "floods_answers": floods_answers,
    "floods_text": floods_text,
    "floods_stderr": floods_stderr,
    "chatters": chatters,
    "asks": asks,
    "notifies": notifies,
    "waits_for_three_and_ends": waits_for_three_and_ends,
    "hangs_on_one": hangs_on_one,
    "starts_others": starts_others,
    "starts_others_and_ends": starts_others_and_ends,
    "wrong_id": answers(lambda number: _json(text("x"))(number + 7)),
    "text_id": answers(lambda number: _json(text("x"))(str(number))),
    "text_result": answers(_json("done")),
    "no_content": answers(_json({"contents": []})),
    "bad_block": answers(_json({"content": [{"type": "hologram", "data": "x"}]})),
    "bad_image": answers(_json({"content": [{"type": "image", "data": "###", "mimeType": "image/png"}]})),
    "wants_input": answers(_json({"resultType": "input_required", "inputRequests": {}, "requestState": "s"})),
    "cut_json": answers(lambda number: _json(text("x"))(number)[:-4]),
    "batch": answers(lambda number: b"[" + _json(text("x"))(number) + b"]"),
    "surrogate": answers(_text(rb"a\ud800\\ud800\u0000b\ud83d\ude00")),
    "invalid_utf8": answers(_text(b"a\xffb")),
    "not_a_number": answers(_structured(b"NaN")),
    "deep": answers(_structured(b"[" * 900 + b"]" * 900)),
    "many_values": answers(_json({"content": [{"type": "text", "text": "x"} for _ in range(30_000)]})),
    "large_text": answers(_json(text("é" * 1_000_000))),
    "null_error": answers(lambda _: b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"Parse error"}}'),
    "closes_stdin": closes_stdin,
    "closes_stdout": lambda _: (os.close(1), forever())[0],
}


OTHERWISE: dict[str, Callable[[], None]] = {
    "ends_at_start": lambda: ends(3)({}),
    "hangs_at_start": lambda: serve(initialize=hangs),
    "hangs_in_list": lambda: serve(tools=hangs),
    "stays": stays,
    "ends_when_told": ends_when_told,
    "records": records,
    "needs_file": needs_file,
    "hangs_at_start_and_says_pid": hangs_at_start_and_says_pid,
    "goes_deaf": goes_deaf,
    "lists_on_and_on": lambda: serve(tools=lists_on_and_on),
    "lists_in_a_circle": lambda: serve(tools=lists_in_a_circle),
    "lists_nonsense": lambda: serve(tools=lambda request: answer(request, {"tools": [{"name": 3}]})),
    "lists": lambda: serve(tools=lambda request: answer(request, {"tools": json.loads(sys.argv[2])})),
    "has_no_tools": lambda: serve(tools=lambda request: refuse(request, -32601, "Method not found")),
    "other_version": lambda: serve(initialize=lambda request: initialized(request, "1999-01-01")),
    "needs_no_handshake": lambda: serve(initialize=needs_no_handshake),
    "needs_no_handshake_and_wants_input": lambda: serve(IN_CALL["wants_input"], initialize=needs_no_handshake),
    "refuses": lambda: serve(lambda request: refuse(request, int(sys.argv[2]), "the reason")),
    "structured": lambda: serve(
        lambda request: answer(request, {"content": [], **json.loads(sys.argv[2])}),
        tools=lambda request: answer(request, {"tools": [STRUCTURED]}),
    ),
    "takes_leave": takes_leave,
    "tells": tells,
    "pid": lambda: serve(lambda request: answer(request, text(str(os.getpid())))),
    "environment": lambda: serve(lambda request: answer(request, text(json.dumps(dict(os.environ))))),
    "folder": lambda: serve(folder),
}

if __name__ == "__main__":
    if sys.argv[1] in OTHERWISE:
        OTHERWISE[sys.argv[1]]()
    else:
        serve(IN_CALL[sys.argv[1]])
