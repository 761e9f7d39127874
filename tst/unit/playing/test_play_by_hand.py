"""`agent-env play BUNDLE TASK`: a person at the terminal, or a file of lines in their place."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import subprocess
import sys
import termios
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from agent_env import RunIndex
from agent_env.cli import root
from agent_env.runs import RunState


def by_hand(shop: Path, task_id: str, *lines: str, options: Sequence[str] = ()) -> Result:
    """Play a task with these lines typed."""
    command = ["play", str(shop), task_id, "--runs", str(shop / "runs"), *options]
    return CliRunner().invoke(root, command, input="".join(f"{line}\n" for line in lines), catch_exceptions=False)


def test_a_task_is_played_with_lines_that_are_typed(shop_dir: Path) -> None:
    """Everything that the agent sees is shown, in order, and the score with its explanation."""
    done = by_hand(shop_dir, "three", "1", "3", "Ann", "", "", "reply Three are sold.")
    assert done.exit_code == 0
    words = [
        "task three",
        "You keep the shop.",
        "Sell 3.",
        "sell(count, to?, colour?, tags?)",
        "Sell some of the stock.",
        "How many.",
        "count (whole number): 3",
        "to (text or null; Enter: none): Ann",
        "colour (red, blue; Enter: red):",
        "tags (JSON list; Enter: []):",
        "7 are left",
        "three: completed",
        "sold  1  sold 3",
        "reward  1",
        "agent-env show",
    ]
    places = [done.output.find(word) for word in words]
    assert -1 not in places, words[places.index(-1)]
    assert places == sorted(places)


def test_what_was_played_is_recorded_as_a_model_plays(shop_dir: Path) -> None:
    """A message that asks for the call, the call, the answer, the reply; filed under `play`."""
    by_hand(shop_dir, "three", "sell", "3", "", "", "", "reply Done.", options=["--group", "play/mine"])
    with RunIndex.open(shop_dir / "runs", read_only=True) as index:
        (run,) = index.all_runs("play/mine")
        events = list(index.events(run.run_id))
    assert (run.reward, run.labels) == (1.0, {"player": "by hand"})
    (call,) = [event.data for event in events if event.kind == "call"]
    first, last = [event.data["message"] for event in events if event.kind == "message"]
    assert first["tool_calls"] == [{"id": call["call_id"], "name": "sell", "arguments": '{"count": 3}'}]
    assert (call["arguments"], call["raw"], last["content"]) == ({"count": 3}, '{"count": 3}', "Done.")


def test_arguments_are_typed_by_the_schema(shop_dir: Path) -> None:
    """What does not fit is said, and asked for again."""
    lines = ("sell", "", "three", "3", "12", "green", "blue", "Ann", '["x", "y"]', "reply Done.")
    done = by_hand(shop_dir, "three", *lines)
    assert done.exit_code == 0
    assert 'it is required; "" is an empty text' in done.output
    assert "an integer" in done.output
    assert done.output.count("colour (") == 2
    assert done.output.count("tags (") == 2
    with RunIndex.open(shop_dir / "runs", read_only=True) as index:
        (group,) = index.groups()
        (run,) = index.all_runs(group.name)
        (call,) = [event.data for event in index.events(run.run_id) if event.kind == "call"]
    assert call["arguments"] == {"count": 3, "to": "12", "colour": "blue", "tags": ["x", "y"]}


def test_a_call_may_be_written_whole(shop_dir: Path) -> None:
    """As JSON, by the tool's number or name; what is no JSON is said, and nothing is called."""
    lines = ('sell {"count": 1}', '1 {"count": 2, "to": null}', 'sell {"count":', "close_shop now", "reply Done.")
    done = by_hand(shop_dir, "three", *lines)
    assert done.exit_code == 0
    assert "9 are left" in done.output
    assert "7 are left" in done.output
    assert "the arguments are no valid JSON: it is cut off" in done.output
    assert "write the arguments as JSON, close_shop {}, or close_shop alone to be asked" in done.output
    assert "sold  1  sold 3" in done.output


def test_text_behind_a_tool_is_the_one_argument_that_it_needs(shop_dir: Path) -> None:
    """Those that may be left out are."""
    done = by_hand(shop_dir, "three", "sell 3", "reply Done.")
    assert "7 are left" in done.output
    assert "sold  1  sold 3" in done.output


def test_a_refusal_is_an_answer(shop_dir: Path) -> None:
    """The turn goes on, as for a model."""
    done = by_hand(shop_dir, "three", 'sell {"count": 11}', 'sell {"count": "x"}', 'sell {"count": 3}', "reply Done.")
    assert done.exit_code == 0
    assert "sell refuses:\n    only 10 are left" in done.output
    assert done.output.count("sell refuses:") == 2


@pytest.mark.parametrize("raised", ["ValueError('oh')", "KeyboardInterrupt", "GeneratorExit"])
def test_a_tool_that_has_a_bug_does_not_refuse(shop_dir: Path, raised: str) -> None:
    """It raised, which is said; also what would end a program elsewhere: nobody pressed Ctrl-C."""
    env = (shop_dir / "envs/store.py").read_text()
    (shop_dir / "envs/store.py").write_text(env.replace('EnvBrokenError("the shop is gone")', raised))
    done = by_hand(shop_dir, "free", "burn", "reply Oh.")
    assert done.exit_code == 0
    assert f"burn raised:\n    {raised.partition('(')[0]}" in done.output
    assert "free: completed" in done.output


def test_turns_follow_each_other(shop_dir: Path) -> None:
    """Each prompt is shown, the tools once; an answer that ends the turn does."""
    done = by_hand(shop_dir, "closing", 'sell {"count": 1}', "reply One.", 'sell {"count": 1}', "close_shop")
    assert done.exit_code == 0
    assert (
        done.output.index("Sell one.") < done.output.index("\nprompt 2") < done.output.index("Sell another, and close.")
    )
    assert done.output.count("You keep the shop.") == 1
    assert done.output.count("sell(count, to?, colour?, tags?)") == 1
    assert "close_shop:\n    closed" in done.output
    assert "sold  1  sold 2" in done.output


def test_words_do_what_they_say(shop_dir: Path) -> None:
    """help, tools, prompt, an empty line, a wrong name; and a call that is given up."""
    done = by_hand(
        shop_dir, "three", "help", "", "tools", "prompt", "sel", "7", "sell", "!", "reply", "", "reply", "Bye."
    )
    assert done.exit_code == 0
    assert "NUMBER or NAME" in done.output
    assert done.output.count("\ntools\n") == 2
    assert done.output.count("    Sell 3.") == 2
    assert "there is no tool or command 'sel', did you mean 'sell'?" in done.output
    assert "there is no tool or command '7'" in done.output
    assert "not called" in done.output
    assert "nothing was said; the turn goes on" in done.output
    assert "sold  0  sold 0" in done.output


def test_cut_ends_the_episode_and_scores_it(shop_dir: Path) -> None:
    """As a trainer does."""
    done = by_hand(shop_dir, "closing", 'sell {"count": 2}', "cut")
    assert done.exit_code == 0
    assert "closing: completed, cut: runner limit" in done.output
    assert "sold  1  sold 2" in done.output


def test_it_is_said_why_a_conversation_is_over(shop_dir: Path) -> None:
    """Whoever led it had nothing more to say, or may say no more; not where a cut or a failure has ended it."""
    done = by_hand(shop_dir, "talk", "reply hello", "reply So?", "reply Bye.")
    assert "> reply Bye.\n\nguest has nothing more to say: the conversation is over\n\ntalk: completed" in done.output
    for line in ("cut", "burn"):
        assert "the conversation is over" not in by_hand(shop_dir, "talk", "reply hello", line).output
    task = shop_dir / "tasks/talk.yaml"
    task.write_text(task.read_text().replace("prompt: {by: guest}", "prompt: {by: guest, max_turns: 2}"))
    done = by_hand(shop_dir, "talk", "reply hello", "reply So?")
    assert (
        "guest may say no more than 2 prompts (max_turns): the conversation is over\n\ntalk: completed" in done.output
    )


@pytest.mark.parametrize("lines", [("quit",), (), ("sell",), ("sell", "3")])
def test_who_quits_gives_the_episode_up(shop_dir: Path, lines: tuple[str, ...]) -> None:
    """By the word, or because there are no more lines, also in the middle of a call: nothing is scored."""
    done = by_hand(shop_dir, "three", *lines, options=["--group", "play/mine"])
    assert done.exit_code == 1
    assert "three: abandoned\n  nothing is scored" in done.output
    with RunIndex.open(shop_dir / "runs", read_only=True) as index:
        assert [run.state for run in index.all_runs("play/mine")] == [RunState.ABANDONED]


def test_a_failure_is_shown(shop_dir: Path) -> None:
    """What broke, and where; exit 1."""
    done = by_hand(shop_dir, "three", "burn")
    assert done.exit_code == 1
    assert "three: failed (env_broken)" in done.output
    assert "env_broken in prompt: " in done.output
    assert "the shop is gone" in done.output


def test_what_a_tool_says_moves_no_cursor(shop_dir: Path) -> None:
    """Escapes are shown by their number."""
    done = by_hand(shop_dir, "three", "shout", "reply \x1b[31mDone.")
    assert "\x1b[31m" not in done.output
    assert "red: ⟨U+001B⟩[31mred" in done.output


def test_json_is_all_that_is_on_standard_output(shop_dir: Path) -> None:
    """The conversation goes to standard error, with what the bundle prints."""
    done = by_hand(shop_dir, "three", 'sell {"count": 3}', "reply Done.", options=["--json"])
    assert done.exit_code == 0
    said = json.loads(done.stdout)
    (episode,) = said["episodes"]
    assert (episode["task_id"], episode["state"], episode["reward"]) == ("three", "completed", 1.0)
    assert "Sell 3." in done.stderr
    assert "a bundle prints" in done.stderr


def test_nothing_is_recorded_where_nothing_is_to_be(shop_dir: Path) -> None:
    """`--no-record`."""
    done = by_hand(shop_dir, "three", "reply Done.", options=["--no-record"])
    assert done.exit_code == 0
    assert "agent-env show" not in done.output
    assert not (shop_dir / "runs").exists()


@pytest.mark.parametrize(("errors", "code"), [("strict", 2), ("surrogateescape", 0)])
def test_lines_that_are_no_text_do_no_harm(shop_dir: Path, errors: str, code: int) -> None:
    """However Python reads them: one line and exit 2, or what is no text is U+FFFD."""
    done = subprocess.run(
        [sys.executable, "-m", "agent_env", "play", str(shop_dir), "three", "--no-record"],
        input=b"reply \xff\n",
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONIOENCODING": f"utf-8:{errors}"},
    )
    assert done.returncode == code
    said = "" if code == 0 else "what is read from standard input is not UTF-8 text\n"
    assert done.stderr.decode() == said
    assert ("reply \ufffd" in done.stdout.decode()) == (code == 0)


class Terminal:
    """A program on a terminal of its own, and the person who sits at it."""

    def __init__(self, master: int, process: subprocess.Popen[bytes]) -> None:
        self.master, self.process = master, process
        self.shown = ""
        self._seen = 0
        """How much of it was waited for."""

    def until(self, text: str) -> None:
        """Wait until this is shown, after what was waited for before."""
        while (place := self.shown.find(text, self._seen)) < 0:
            ready, _, _ = select.select([self.master], [], [], 30)
            assert ready, f"{text!r} never came: {self.shown}"
            assert self._read(), f"{text!r} never came: {self.shown}"
        self._seen = place + len(text)

    def _read(self) -> bool:
        try:
            part = os.read(self.master, 65536)
        except OSError:  # the other side is closed
            return False
        self.shown += part.decode(errors="replace")
        return bool(part)

    def type(self, keys: str) -> None:
        """Press keys."""
        os.write(self.master, keys.encode())

    def end(self, key: str = "") -> int:
        """Press a key, wait for the end of the program, and return its exit code.

        The key is pressed again when nothing happens: a Ctrl-C that comes just before readline begins to wait is not seen
        by CPython until the next signal.
        """
        self.type(key)
        while True:
            ready, _, _ = select.select([self.master], [], [], 3)
            if not ready:
                self.type(key)
            elif not self._read():
                return self.process.wait(30)


@contextmanager
def _on_terminal(*arguments: str) -> Generator[Terminal]:
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "agent_env", *arguments],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(slave)
    try:
        yield Terminal(master, process)
    finally:
        process.kill()
        process.wait()
        os.close(master)


def test_a_person_plays_on_a_terminal_with_the_tab_key(shop_dir: Path) -> None:
    """Names are completed; the exit code is 0."""
    with _on_terminal("play", str(shop_dir), "three", "--no-record") as terminal:
        terminal.until("> ")
        terminal.type('se\t{"count": 3}\n')
        terminal.until("7 are left")
        terminal.until("> ")
        terminal.type("rep\tDone.\n")
        assert terminal.end() == 0
    assert "sold  1  sold 3" in terminal.shown


@pytest.mark.parametrize(("key", "code"), [("\x03", 130), ("\x04", 1)])
@pytest.mark.parametrize("line", ["", "sell\n"])
def test_ctrl_c_and_ctrl_d_give_the_episode_up(shop_dir: Path, key: str, code: int, line: str) -> None:
    """At the prompt and at an argument: everything is given back, and no traceback is shown."""
    with _on_terminal("play", str(shop_dir), "three", "--runs", str(shop_dir / "runs"), "--group", "g") as terminal:
        terminal.until("> ")
        if line:
            terminal.type(line)
            terminal.until("count (whole number): ")
        assert terminal.end(key) == code
    assert "Traceback" not in terminal.shown
    with RunIndex.open(shop_dir / "runs", read_only=True) as index:
        assert [run.state for run in index.all_runs("g")] == [RunState.ABANDONED]


def test_ctrl_c_stops_a_tool_that_waits(shop_dir: Path) -> None:
    """The tool is cancelled, the env closed."""
    envs = (shop_dir / "envs/store.py").read_text() + (
        "\n    @tool\n    async def wait(self) -> None:\n        '''Wait.'''\n        import asyncio\n\n"
        "        print('waiting', flush=True)\n        await asyncio.sleep(1000)\n\n"
        "    async def close(self):\n        print('env closed', flush=True)\n"
    )
    (shop_dir / "envs/store.py").write_text(envs)
    with _on_terminal("play", str(shop_dir), "three", "--no-record") as terminal:
        terminal.until("> ")
        terminal.type("wait\n")
        terminal.until("waiting")
        assert terminal.end("\x03") == 130
    assert "env closed" in terminal.shown
    assert "Traceback" not in terminal.shown
