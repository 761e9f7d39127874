"""A command in the sandbox, alone or as verifier: what it exits with, or what it writes to a file, is the score.

A verifier's command runs where the processes that the agent left cannot reach it, nor its files, as far as the sandbox can keep
them apart (`sandbox/verifier_side.py`). What it looks at is what the agent left, and so may be what it runs.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import NoReturn

from anyio import to_thread

from agent_env.bundle import Command, CommandVerifier
from agent_env.bundle.raised import trace_of
from agent_env.errors import EnvBrokenError, UsageError
from agent_env.outcome import FailureKind, Score
from agent_env.sandbox import open_verifier_side
from agent_env.sandbox.contract import FILES_VARIABLE, ExecResult, PlacedFile, Sandbox, VerifierSide
from agent_env.sandbox.verifier_side import placed_files
from agent_env.verify.returned import score_of
from agent_env.verify.step_failed import StepFailedError, broken_kind

__all__ = ["SCORE_VARIABLE", "command_score", "how_it_ended", "run_command", "sandbox_of"]

SCORE_VARIABLE = "AGENT_ENV_SCORE"
"""The environment variable that says where a verifier's command writes its score."""

_SCORE_BYTES = 2**20
_OUTPUT_CHARS = 2_000
"""How much of the end of what a command printed explains its score."""
_CANNOT_RUN, _NOT_FOUND, _SIGNALS = 126, 127, range(129, 193)
"""What a shell exits with for what it cannot run, does not find, and for what a signal has ended."""

_STARTS_CLEAN = {"PYTHONNOUSERSITE": "1"}
"""For verifiers: else each Python that they start would first run what the agent has put into its home."""


def sandbox_of(command: Command, sandboxes: Mapping[str, Sandbox], kind: FailureKind) -> Sandbox:
    """Return the sandbox that a command is run in.

    Args:
        command: The command.
        sandboxes: Those that are open in the episode, by their env's name.
        kind: The kind of failure when it is not among them.

    Raises:
        StepFailedError: When its env was not deployed.
    """
    sandbox = sandboxes.get(command.env)
    if sandbox is None:
        raise StepFailedError(kind, f"sandbox '{command.env}' was not deployed, so no command can be run in it")
    return sandbox


async def run_command(command: Command, sandbox: Sandbox, *, root: Path, timeout_s: float | None) -> ExecResult:
    """Run a command of a `run` step where the agent works, with the bundle's files for it there as long as it runs.

    Args:
        command: The command.
        sandbox: Where it is run.
        root: The bundle's folder.
        timeout_s: Seconds that the command may take; putting its files there does not count.

    Raises:
        EnvBrokenError: When the sandbox is lost.
        OSError: When a file of the bundle cannot be read, or put there.
        UsageError: When the bundle's files are none that can be put there.
    """
    if command.files is None:
        return await sandbox.run(command.command, timeout_s=timeout_s)
    async with placed_files(sandbox, await _read(root / command.files)) as place:
        return await sandbox.run(command.command, env={FILES_VARIABLE: str(place)}, timeout_s=timeout_s)


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
    command = verifier.command
    try:
        files = () if command.files is None else await _read(root / command.files)
        async with open_verifier_side(sandbox, files) as side:
            place = None if verifier.score_file is None else _score_place(side, verifier.score_file)
            environment = _STARTS_CLEAN if place is None else _STARTS_CLEAN | {SCORE_VARIABLE: str(place)}
            if place is not None and place.parent != side.own:
                await side.run(["mkdir", "-p", "--", str(place.parent)])
            result = await side.run(command.command, env=environment, timeout_s=timeout_s)
            _check_ended(result, timeout_s)
            if place is not None:
                return await _written_score(step, side.sandbox, place, result)
    except EnvBrokenError as exc:
        trace = "\n".join(filter(None, (exc.details, trace_of(exc))))
        raise StepFailedError(broken_kind(exc), str(exc), trace) from exc
    except (OSError, UsageError) as exc:
        message = f"the command or its files cannot be put into the sandbox: {exc}"
        raise StepFailedError(FailureKind.VERIFIER_RAISED, message, trace_of(exc)) from exc
    return Score(step=step, value=1.0 if result.exit_code == 0 else 0.0, explanation=how_it_ended(result))


async def _read(folder: Path) -> Sequence[PlacedFile]:
    return await to_thread.run_sync(_read_files, folder)


def _read_files(folder: Path) -> Sequence[PlacedFile]:
    found: list[PlacedFile] = []
    top = folder.resolve(strict=True)
    for path in sorted(top.rglob("*")):
        relative = path.relative_to(top)
        if path.is_dir() or "__pycache__" in relative.parts:
            continue
        if not path.resolve().is_relative_to(top):
            raise UsageError(
                f"'{relative.as_posix()}' is a symlink that leads out of {folder.name}/: copy the file there"
            )
        file = PlacedFile(
            path=PurePosixPath(relative.as_posix()), content=path.read_bytes(), is_executable=os.access(path, os.X_OK)
        )
        found.append(file)
    if not found:
        raise UsageError(f"there is no file in {folder.name}/: add one, or leave files: out")
    return found


def _score_place(side: VerifierSide, score_file: str) -> PurePosixPath:
    path = PurePosixPath(score_file)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        message = (
            f"score_file '{score_file}' is no path in the verifier's own folder: write a name, as in score_file: score.json, "
            f'and have the command write to "${SCORE_VARIABLE}"'
        )
        raise StepFailedError(FailureKind.VERIFIER_RAISED, message)
    return side.own / path


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


async def _written_score(step: str, sandbox: Sandbox, place: PurePosixPath, result: ExecResult) -> Score:
    try:
        content = await sandbox.read_file(place, max_bytes=_SCORE_BYTES)
    except FileNotFoundError:
        why = f'the command (exit code {result.exit_code}) wrote no score to "${SCORE_VARIABLE}"'
        raise StepFailedError(FailureKind.SCORE_INVALID, why, how_it_ended(result)) from None
    except OSError as exc:
        why = f"what the command wrote to ${SCORE_VARIABLE} cannot be read: {exc.strerror or exc}"
        raise StepFailedError(FailureKind.SCORE_INVALID, why, how_it_ended(result)) from None
    try:
        score = score_of(step, _json(content))
    except ValueError as exc:
        why = f"what the command wrote to ${SCORE_VARIABLE} {exc}"
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
