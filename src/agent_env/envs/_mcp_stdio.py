"""A server that is a process of ours: messages over its standard input and output, a line of JSON each.

The SDK's own client for this keeps a line in memory however long it is, and ends the process but not what the process has
started. Here lines are bounded, and `_mcp_process.py` ends everything.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import anyio
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCMessage, jsonrpc_message_adapter
from pydantic import ValidationError
from pydantic_core import from_json

from agent_env.envs._mcp_command import empty_folder
from agent_env.envs._mcp_process import Patience, ServerCommand, ServerProcess
from agent_env.envs._mcp_streams import Reading, Streams, Writing
from agent_env.envs._mcp_turns import turn_to_start
from agent_env.envs._mcp_watch import MAX_MESSAGE_BYTES, EndedError, Watch, is_too_much

__all__ = ["StdioServer"]

_KEPT_CHARS = 1000
"""How much of a line that is no message is kept."""
_HALF = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\\\|\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
"""A pair of surrogates, a backslash that stands for itself, or half of a pair."""
_HALF_CHARS = 6


class StdioServer:
    """One server's process; used once."""

    is_remote = False

    def __init__(self, command: ServerCommand, watch: Watch, patience: Patience) -> None:
        self._command = command
        self._process = ServerProcess(command, watch.tail, patience, max_line_bytes=MAX_MESSAGE_BYTES)
        self._watch = watch

    @asynccontextmanager
    async def streams(self) -> AsyncGenerator[Streams]:
        """Start the server, and end it and all that it has started when the block ends.

        Raises:
            CannotStartError: When its program cannot be run.
        """
        async with AsyncExitStack() as stack:
            has_started = await stack.enter_async_context(turn_to_start())
            folder = self._command.folder
            if folder is None:
                folder = await stack.enter_async_context(empty_folder())
            stack.push_async_callback(self._close)
            await self._process.connect(folder)
            yield _Incoming(self._process, self._watch, has_started), _Outgoing(self._process, self._watch)

    async def _close(self) -> None:
        await self._process.close(at_once=bool(self._watch.fault))

    async def ending(self) -> str:
        """Say how the server ended, as what follows its name in a sentence."""
        return await self._process.ending()


class _Incoming(Reading):
    """What the server writes, a line of its standard output each."""

    def __init__(self, process: ServerProcess, watch: Watch, has_started: Callable[[], None]) -> None:
        self._process = process
        self._watch = watch
        self._has_started = has_started

    async def receive(self) -> SessionMessage | Exception:
        try:
            while True:
                # Lines that are there already are read without waiting, and a server may write them faster than we read.
                await asyncio.sleep(0)
                message = self._message(await self._process.lines.readuntil(b"\n"))
                if message is not None:
                    self._has_started()
                    return SessionMessage(message)
        except asyncio.LimitOverrunError:
            self._watch.ended(f"wrote a line of more than {MAX_MESSAGE_BYTES // 2**20} MiB on its standard output")
        except asyncio.IncompleteReadError as exc:
            if start := _start(exc.partial):
                self._watch.tail.line(f"on stdout, as the start of a line: {start}")
        except (EndedError, OSError):
            pass
        self._watch.over()
        raise anyio.EndOfStream

    def _message(self, line: bytes) -> JSONRPCMessage | None:
        if not line.strip():
            return None
        if is_too_much(line):
            raise self._watch.ended("wrote a message of too many values: have it send less at once")
        try:
            message = jsonrpc_message_adapter.validate_json(line, by_name=False)
        except ValidationError as exc:
            message = self._repaired(line, exc)
        if message is None or not self._watch.received(message, len(line)):
            return None
        return message

    def _repaired(self, line: bytes, exc: ValidationError) -> JSONRPCMessage | None:
        """Return the message that only its characters keep from being one; None for a line that is not meant to be one."""
        start = _start(line)
        if not (start[:1] in ("{", "[") and b'"jsonrpc"' in line):
            self._watch.unasked(len(line), f"on stdout: {start}")
            return None
        text = _HALF.sub(_whole, line.decode("utf-8", "replace"))
        with suppress(ValidationError):
            return jsonrpc_message_adapter.validate_json(text, by_name=False)
        if _is_no_answer(text):
            self._watch.unasked(len(line), f"not understood: {start}")
            return None
        self._watch.tail.line(f"on stdout: {start}")
        first = exc.errors(include_url=False, include_input=False)[0]
        why = f" ({first['msg']})" if first["type"] == "json_invalid" else ""
        raise self._watch.ended(f"wrote a line on its standard output that is no message of the protocol{why}")


def _is_no_answer(text: str) -> bool:
    """Whether a message that is not shaped as it should be is one that nobody waits for."""
    try:
        message = from_json(text)
    except ValueError:
        return False
    return isinstance(message, dict) and "method" in message


def _start(line: bytes) -> str:
    return line[:_KEPT_CHARS].decode("utf-8", "replace").strip()


def _whole(found: re.Match[str]) -> str:
    """Half of a pair of surrogates is no text; what else was found stays."""
    text = found.group()
    return "\\ufffd" if len(text) == _HALF_CHARS else text


class _Outgoing(Writing):
    """What goes to the server. It never waits: what is under way at once is what episodes have asked for."""

    def __init__(self, process: ServerProcess, watch: Watch) -> None:
        self._process = process
        self._watch = watch

    async def send(self, item: SessionMessage, /) -> None:
        self._watch.sent(item.message)
        data = item.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
        if not self._process.write(data):
            raise anyio.BrokenResourceError
