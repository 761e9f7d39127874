"""The engine in a process of its own, which ends with the block that started it or with its parent.

Nothing here imports torch: only the new process does.
"""

from __future__ import annotations

import json
import logging
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agent_env._optional import TRAINER, require
from agent_env.engine.options import EngineOptions
from agent_env.errors import EngineError

__all__ = ["EngineHandle", "serve", "start_engine"]

logger = logging.getLogger(__name__)

API_KEY = "tml-embedded-engine"
"""The SDK wants a key of this form. The engine has no access control: it listens on this machine alone."""

GRACE_S = 5.0
CHECK_PARENT_EVERY_S = 0.5
LOG_TAIL_BYTES = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineHandle:
    """A running engine."""

    base_url: str
    """For `tinker.ServiceClient(base_url=...)` and the cookbook's `base_url`."""
    api_key: str
    """For the environment variable `TINKER_API_KEY`; any key that starts with `tml-` does."""
    model_name: str
    """The `base_model` that it serves, which is the model's directory: `get_tokenizer` takes it too."""
    pid: int
    log_path: Path
    """What it wrote to stdout and stderr."""
    exit_code: Callable[[], int | None]
    """Asked in the process that started it: None while it runs, else what it ended with; -9 is a kill."""


@contextmanager
def start_engine(
    model_dir: Path,
    *,
    state_dir: Path,
    port: int = 0,
    options: EngineOptions = EngineOptions(),  # noqa: B008 - a frozen value
    start_timeout_s: float = 120.0,
) -> Generator[EngineHandle]:
    """Run an engine for the length of a block.

    It ends with the block; it also ends by itself when this process ends, however it ends.

    Args:
        model_dir: A Qwen3 model in Hugging Face layout, with its tokenizer; `build_model` makes one.
        state_dir: Where checkpoints and the log are; an engine started on it again goes on from them.
        port: 0 takes any free one.
        options: How it runs.
        start_timeout_s: How long to wait until it answers.

    Yields:
        Where it is.

    Raises:
        EngineError: When it cannot start; the message carries what it wrote last.
        MissingExtraError: When torch, transformers or tinker is not installed.
    """
    for module in ("tinker", "torch", "transformers"):
        _installed(module)
    state_dir.mkdir(parents=True, exist_ok=True)
    log_path = state_dir / "engine.log"
    command = [sys.executable, "-m", "agent_env.engine", "--model", str(model_dir.resolve()), "--supervised"]
    command += ["--state-dir", str(state_dir.resolve()), "--port", str(port), "--options", json.dumps(asdict(options))]
    with log_path.open("ab") as log:
        begin = log.tell()
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
        try:
            ready = _wait_until_ready(process, log_path, begin, start_timeout_s)
            yield EngineHandle(
                base_url=f"http://127.0.0.1:{ready['port']}",
                api_key=API_KEY,
                model_name=str(model_dir.resolve()),
                pid=process.pid,
                log_path=log_path,
                exit_code=process.poll,
            )
        finally:
            _end(process)


def _installed(module: str) -> None:
    from importlib.util import find_spec

    if find_spec(module) is None:
        require(module, install=TRAINER, feature="The embedded engine")


def _wait_until_ready(process: subprocess.Popen[bytes], log_path: Path, begin: int, timeout_s: float) -> dict[str, Any]:
    assert process.stdout is not None
    deadline = time.monotonic() + timeout_s
    said = select.poll()  # `select` takes no file descriptor above 1,023
    said.register(process.stdout, select.POLLIN)
    line = b""
    while not line.endswith(b"\n"):
        readable = said.poll(max(0.0, deadline - time.monotonic()) * 1000)
        part = os.read(process.stdout.fileno(), 4096) if readable else b""
        if not part:
            code = process.poll() if not readable else process.wait()
            happened = f"did not answer within {timeout_s:g} s" if code is None else f"ended with code {code}"
            raise EngineError(f"the embedded engine {happened}. {_tail(log_path, begin)}")
        line += part
    ready: dict[str, Any] = json.loads(line)
    return ready


def _tail(log_path: Path, begin: int) -> str:
    with log_path.open("rb") as log:
        size = log.seek(0, os.SEEK_END)
        log.seek(max(begin, size - LOG_TAIL_BYTES))
        text = log.read().decode(errors="replace").strip()
    return f"It wrote:\n{text}" if text else "It wrote nothing."


def _end(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    process.terminate()
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def serve(
    model_dir: Path,
    *,
    state_dir: Path,
    host: str = "127.0.0.1",
    port: int = 0,
    options: EngineOptions = EngineOptions(),  # noqa: B008 - a frozen value
    ready: Callable[[str], None] | None = None,
) -> None:
    """Run an engine in this process until it is told to end (Ctrl-C, SIGTERM).

    Args:
        model_dir: A Qwen3 model in Hugging Face layout, with its tokenizer.
        state_dir: Where checkpoints are.
        host: An address of this machine itself; others are refused.
        port: 0 takes any free one.
        options: How it runs.
        ready: Told the base URL once the engine answers.

    Raises:
        EngineError: When the model cannot be served, the host is not a loopback address, or the port is taken.
        MissingExtraError: When torch, transformers or tinker is not installed.
    """
    for module in ("tinker", "torch", "transformers"):
        _installed(module)
    from agent_env.engine.server import run_server

    def announce(actual: int) -> None:
        shown = f"[{host}]" if ":" in host else host
        if ready is not None:
            ready(f"http://{shown}:{actual}")

    run_server(model_dir.resolve(), state_dir=state_dir, host=host, port=port, options=options, ready=announce)


def end_with_parent() -> None:
    """Watch stdin and the parent's id, and end this process at once when the parent has ended.

    Both, because a process that the parent forked may hold the pipe open. Not `PR_SET_PDEATHSIG`: Linux sends it when
    the thread that started the child ends, and only Linux has it.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            readable, _, _ = select.select([sys.stdin.fileno()], [], [], CHECK_PARENT_EVERY_S)
            if readable and not os.read(sys.stdin.fileno(), 4096):
                break
        # Nothing to save: a checkpoint is whole or not there.
        os._exit(0)

    threading.Thread(target=watch, name="engine-parent", daemon=True).start()
