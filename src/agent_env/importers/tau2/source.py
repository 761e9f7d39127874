"""tau2-bench's retail data as it is read from a checkout, with everything checked that a bundle of it relies on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from agent_env.bundle import names_or_closest
from agent_env.bundle.json_text import JsonFault, JsonFileError, read_json
from agent_env.errors import UsageError
from agent_env.importers.tau2.shape import MisshapenError, TaskEntry, check_database, read_splits, read_task
from agent_env.importers.tau2.tools import Tools, misfit

__all__ = ["RetailSource", "read_source"]

_FOLDER = Path("data", "tau2", "domains", "retail")
"""Where a checkout has the retail data."""
_FILES = ("db.json", "tasks.json", "split_tasks.json", "policy.md")
_EVERY = "all"
"""The eval that every bundle has; a split of this name would be another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetailSource:
    """What a checkout has."""

    database: Any
    """The store, a JSON value."""
    tasks: tuple[TaskEntry, ...]
    splits: Mapping[str, tuple[str, ...]]
    """Task ids by split, none of them empty."""
    policy: str
    licence: str | None
    """The text of its licence; None when there is none beside the data."""


def read_source(source: Path, tools: Tools) -> RetailSource:
    """Read the retail data of a tau2-bench checkout.

    Args:
        source: The checkout, or the folder with the four files themselves.
        tools: What its reference calls may call.

    Raises:
        UsageError: When there is no such data, or it has another shape; the message names the file and the place.
    """
    folder = _folder(source)
    database = _json(folder / "db.json")
    try:
        check_database(database)
    except MisshapenError as exc:
        raise UsageError(f"{folder / 'db.json'}: {exc}: is it the database of tau2-bench's retail domain?") from None
    tasks = _tasks(folder / "tasks.json", tools)
    policy = _text(folder / "policy.md")
    if not policy.strip():
        raise UsageError(f"{folder / 'policy.md'}: the file is empty")
    return RetailSource(
        database=database,
        tasks=tasks,
        splits=_splits(folder / "split_tasks.json", [task.id for task in tasks]),
        policy=policy,
        licence=next((_text(path) for place in (source, folder) if (path := place / "LICENSE").is_file()), None),
    )


def _folder(source: Path) -> Path:
    if not source.is_dir():
        what = "it is no folder" if source.exists() else "there is no such folder"
        raise UsageError(f"{source}: {what}, name a checkout of tau2-bench")
    inside = source / _FOLDER
    folder = inside if inside.is_dir() else source
    missing = [name for name in _FILES if not (folder / name).is_file()]
    if len(missing) == len(_FILES):
        raise UsageError(
            f"{source}: neither {_FOLDER.as_posix()} nor {', '.join(_FILES)} is in it, name a checkout of tau2-bench"
        )
    if missing:
        raise UsageError(f"{folder / missing[0]}: there is no such file; the retail data is {', '.join(_FILES)}")
    return folder


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as exc:
        raise UsageError(f"{path}: it is not UTF-8 text at byte {exc.start}") from None
    except OSError as exc:
        raise UsageError(f"{path}: it cannot be read: {exc.strerror}") from exc


def _json(path: Path) -> Any:
    try:
        return read_json(_text(path))
    except JsonFileError as exc:
        if exc.fault is JsonFault.SYNTAX:
            raise UsageError(f"{path}:{exc.line}: it is not JSON: {exc.what} at column {exc.column}") from None
        raise UsageError(f"{path}: {exc.what}, {exc.fix}") from None


def _tasks(path: Path, tools: Tools) -> tuple[TaskEntry, ...]:
    data = _json(path)
    if not isinstance(data, list) or not data:
        raise UsageError(f"{path}: it is no list of tasks")
    tasks: dict[str, TaskEntry] = {}
    for index, entry in enumerate(cast("list[object]", data)):
        try:
            task = read_task(entry)
        except MisshapenError as exc:
            raise UsageError(f"{path}: {_called(entry, index)}: {exc}") from None
        if task.id in tasks:
            raise UsageError(f"{path}: item {index}: the id '{task.id}' is taken by an item before it")
        tasks[task.id] = task
        _check_playable(path, task, tools)
    return tuple(tasks.values())


def _called(entry: object, index: int) -> str:
    """Return how a message speaks of an entry of tasks.json."""
    task_id = cast("dict[str, object]", entry).get("id") if isinstance(entry, dict) else None
    return f"task '{task_id}'" if isinstance(task_id, str) else f"item {index}"


def _check_playable(path: Path, task: TaskEntry, tools: Tools) -> None:
    where = f"{path}: task '{task.id}'"
    if task.initial_state is not None:
        raise UsageError(f"{where}: initial_state: a state of a task's own cannot be imported, only null")
    for index, action in enumerate(task.evaluation_criteria.actions or ()):
        here = f"{where}: evaluation_criteria.actions.{index}"
        if action.requestor != "assistant":
            raise UsageError(
                f"{here}: requestor: calls of '{action.requestor}' cannot be imported, only those of 'assistant'"
            )
        wrong = misfit(tools, action.name, action.arguments)
        if wrong is not None:
            raise UsageError(f"{here}: {wrong}")
    for index, text in enumerate(task.evaluation_criteria.communicate_info or ()):
        if not text.strip():
            raise UsageError(f"{where}: evaluation_criteria.communicate_info.{index}: the text is empty")


def _splits(path: Path, task_ids: list[str]) -> dict[str, tuple[str, ...]]:
    try:
        splits = read_splits(_json(path))
    except MisshapenError as exc:
        raise UsageError(f"{path}: {exc}: it holds lists of task ids by split") from None
    known = set(task_ids)
    for name, ids in splits.items():
        if not name.replace("-", "").replace("_", "").isalnum() or not name.isascii() or not name[0].isalnum():
            raise UsageError(f"{path}: the split '{name}' cannot be an eval: use letters, digits, - and _")
        if name == _EVERY and set(ids) != known:
            raise UsageError(f"{path}: the split '{name}' is not all tasks, as the eval of this name is: rename it")
        for task_id, count in Counter(ids).items():
            if task_id not in known:
                raise UsageError(
                    f"{path}: the split '{name}' has task '{task_id}', which is not there, {names_or_closest(task_id, task_ids)}"
                )
            if count > 1:
                raise UsageError(f"{path}: the split '{name}' has task '{task_id}' {count} times, once is right")
    return {name: tuple(ids) for name, ids in splits.items() if ids and name != _EVERY}
