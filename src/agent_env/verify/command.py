"""A command in the sandbox, alone or as verifier: what it exits with, or what it writes to a file, is the score.

The bundle's files for it are put into a folder that is made for it, with a name that nobody could know before, and taken
away after it. It runs in the machine that the agent worked in: what the agent left there is there.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import signal
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path, PurePosixPath
from typing import NoReturn

import anyio
from anyio import to_thread

from agent_env.bundle import Command, CommandVerifier
from agent_env.errors import EnvBrokenError, UsageError
from agent_env.outcome import FailureKind, Score
from agent_env.sandbox.contract import ExecResult, Sandbox
from agent_env.verify.returned import score_of
from agent_env.verify.step_failed import StepFailedError, broken_kind, trace_of

__all__ = ["FILES_VARIABLE", "command_score", "run_command"]

logger = logging.getLogger(__name__)

FILES_VARIABLE = "AGENT_ENV_VERIFIER"
"""The environment variable that says where the bundle's files are."""

_SCORE_BYTES = 2**20
_OUTPUT_CHARS = 2_000
"""How much of the end of what a command printed explains its score."""
_REMOVE_S = 30.0
_CANNOT_RUN, _NOT_FOUND, _SIGNALS = 126, 127, range(129, 193)
"""What a shell exits with for what it cannot run, does not find, and for what a signal has ended."""


_STARTS_CLEAN = {"PYTHONNOUSERSITE": "1"}
"""For verifiers: else each Python that they start would first run what the agent has put into its home."""


async def run_command(
    command: Command,
    sandbox: Sandbox,
    *,
    root: Path,
    timeout_s: float | None,
    environment: Mapping[str, str] | None = None,
) -> ExecResult:
    """Run a command, with the bundle's files for it there as long as it runs.

    Args:
        command: The command.
        sandbox: Where it is run.
        root: The bundle's folder.
        timeout_s: Seconds that the command may take; putting its files there does not count.
        environment: More of its environment.

    Raises:
        EnvBrokenError: When the sandbox is lost.
        OSError: When a file of the bundle cannot be read, or put there.
        UsageError: When the bundle's files are none that can be put there.
    """
    async with _files(sandbox, None if command.files is None else root / command.files) as variables:
        return await sandbox.run(command.command, env={**(environment or {}), **variables}, timeout_s=timeout_s)


async def command_score(
    step: str, verifier: CommandVerifier, sandbox: Sandbox, *, root: Path, timeout_s: float | None
) -> Score:
    """Run the command of a verify step, and return its score.

    Args:
        step: The step's id.
        verifier: The command.
        sandbox: Where it is run.
        root: The bundle's folder.
        timeout_s: Seconds that the command may take; putting its files there does not count.

    Raises:
        StepFailedError: When the command cannot be run, is ended by a signal or takes too long, the file that it writes
            has no score, or the sandbox is lost.
    """
    try:
        if verifier.score_file is not None:
            await _remove_score(sandbox, verifier.score_file)
        result = await run_command(verifier.command, sandbox, root=root, timeout_s=timeout_s, environment=_STARTS_CLEAN)
        _check_ended(result, timeout_s)
        if verifier.score_file is not None:
            return await _written_score(step, sandbox, verifier.score_file, result)
    except EnvBrokenError as exc:
        trace = "\n".join(filter(None, (exc.details, trace_of(exc))))
        raise StepFailedError(broken_kind(exc), str(exc), trace) from exc
    except (OSError, UsageError) as exc:
        message = f"the command or its files cannot be put into the sandbox: {exc}"
        raise StepFailedError(FailureKind.VERIFIER_RAISED, message, trace_of(exc)) from exc
    return Score(step=step, value=1.0 if result.exit_code == 0 else 0.0, explanation=how_it_ended(result))


@asynccontextmanager
async def _files(sandbox: Sandbox, folder: Path | None) -> AsyncGenerator[dict[str, str]]:
    """Put a folder's files into the sandbox for as long as the block, and say where in environment variables."""
    if folder is None:
        yield {}
        return
    contents = await to_thread.run_sync(_read, folder)
    place = sandbox.private_dir / f"verifier-{secrets.token_hex(8)}"
    try:
        for path, content, is_executable in contents:
            await sandbox.write_file(place / path, content, executable=is_executable)
        yield {FILES_VARIABLE: str(place)}
    finally:
        await _remove(sandbox, place)


def _read(folder: Path) -> list[tuple[PurePosixPath, bytes, bool]]:
    """Return the files of a folder: where in it they are, what is in them, and whether they can be run."""
    found: list[tuple[PurePosixPath, bytes, bool]] = []
    top = folder.resolve(strict=True)
    for path in sorted(top.rglob("*")):
        relative = path.relative_to(top)
        if path.is_dir() or "__pycache__" in relative.parts:
            continue
        if not path.resolve().is_relative_to(top):
            raise UsageError(
                f"'{relative.as_posix()}' is a symlink that leads out of {folder.name}/: copy the file there"
            )
        found.append((PurePosixPath(relative.as_posix()), path.read_bytes(), os.access(path, os.X_OK)))
    if not found:
        raise UsageError(f"there is no file in {folder.name}/: add one, or leave files: out")
    return found


async def _remove(sandbox: Sandbox, place: PurePosixPath) -> None:
    with anyio.move_on_after(_REMOVE_S, shield=True) as scope:
        try:
            result = await sandbox.run(["rm", "-rf", "--", str(place)], timeout_s=_REMOVE_S)
        except EnvBrokenError:
            return  # and what was in it with it
        if not result.is_ok:
            logger.error("the files of a verifier stay in the sandbox: rm: %s", _said(result.stderr))
    if scope.cancelled_caught:
        logger.error("the files of a verifier stay in the sandbox: rm took longer than %s s", _REMOVE_S)


async def _remove_score(sandbox: Sandbox, score_file: str) -> None:
    """Take away what the agent may have written there."""
    path = PurePosixPath(score_file)
    # A folder only in the working directory: on a host without isolation the path may be anything of the user's.
    is_inside = not path.is_absolute() and ".." not in path.parts and path.parts
    result = await sandbox.run(["rm", "-rf" if is_inside else "-f", "--", score_file])
    if not result.is_ok:
        message = f"the score file '{score_file}' cannot be taken away before the command: {_said(result.stderr)}"
        raise StepFailedError(FailureKind.VERIFIER_RAISED, message)


def _check_ended(result: ExecResult, timeout_s: float | None) -> None:
    code = result.exit_code
    if result.timed_out:
        bound = "its time" if timeout_s is None else f"{timeout_s:g} s"
        message = f"the command took longer than {bound}"
        raise StepFailedError(FailureKind.VERIFIER_TIMEOUT, message, how_it_ended(result))
    if code in (_CANNOT_RUN, _NOT_FOUND):
        why = "is not there" if code == _NOT_FOUND else "cannot be run"
        message = f"the command {why} (exit code {code}): {_said(result.stderr)}"
    elif code in _SIGNALS:
        notes = f" ({' '.join(result.notes)})" if result.notes else ""
        message = f"the command was ended by {_signal_name(code - 128)}, so it says nothing of the agent{notes}"
    else:
        return
    raise StepFailedError(FailureKind.VERIFIER_RAISED, message, how_it_ended(result))


async def _written_score(step: str, sandbox: Sandbox, score_file: str, result: ExecResult) -> Score:
    try:
        content = await sandbox.read_file(score_file, max_bytes=_SCORE_BYTES)
    except FileNotFoundError:
        why = f"the command (exit code {result.exit_code}) wrote no score to '{score_file}'"
        raise StepFailedError(FailureKind.SCORE_INVALID, why, how_it_ended(result)) from None
    except OSError as exc:
        why = f"the score file '{score_file}' cannot be read: {exc.strerror or exc}"
        raise StepFailedError(FailureKind.SCORE_INVALID, why, how_it_ended(result)) from None
    try:
        score = score_of(step, _json(content))
    except ValueError as exc:
        why = f"the score file '{score_file}' {exc}"
        raise StepFailedError(FailureKind.SCORE_INVALID, why, how_it_ended(result)) from None
    if score.explanation:
        return score
    return Score(step=step, value=score.value, explanation=how_it_ended(result), metrics=score.metrics)


def _json(content: bytes) -> object:
    try:
        return json.loads(content, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        start = _said(content[:80]) or "nothing"
        raise ValueError(f"has no JSON in it but {start!r}: write a finite number, or an object with 'score'") from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)


def how_it_ended(result: ExecResult) -> str:
    """Return how a command ended and the end of what it printed."""
    parts = [f"exit code {result.exit_code}", *result.notes]
    for name, output in (("stdout", result.stdout), ("stderr", result.stderr)):
        text = output.decode("utf-8", "replace").replace("\0", "\N{REPLACEMENT CHARACTER}").strip()
        if text:
            parts.append(f"{name}:\n{text if len(text) <= _OUTPUT_CHARS else '…' + text[1 - _OUTPUT_CHARS :]}")
    return "\n".join(parts)


def _said(output: bytes) -> str:
    """Return the end of an output in one line."""
    return " ".join(output[-_OUTPUT_CHARS:].decode("utf-8", "replace").replace("\0", "").split())[-300:]


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
