r"""Where two directories differ: `/path/to/file`, each file, symlink and directory as a whole.

A file is `{"type": "file", "mode": "644", "text": ...}`, or with `base64` when it is no UTF-8 text. Of one that is too long
to be kept there are `size` and `sha256`; of one that cannot be read, or that is too long for that, the `size`. A symlink has its `target`. Of a
directory only that it is there is compared. In names and targets that are no UTF-8 the bytes are written as `\xff`, and are
whole in `bytes`, in base64; such a change is not made again.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agent_env.errors import UniverseError
from agent_env.universe.change import MISSING, ChangeLimits, StateChanges
from agent_env.universe.diff import Found, Rules, bounded
from agent_env.universe.directory import Copied, Entry, look_at
from agent_env.universe.inside import chunks_inside, entries_inside

__all__ = ["DirectoryState", "described", "directory_differences", "is_unread", "told_whether_kept"]

_ENTRIES_BYTES = 4_000_000
"""What may be kept of files beside what is in them."""
_HASHED_BYTES = 2**30
"""How much of long files is read in one comparison, a few seconds' work: a sparse file says that it has any size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryState:
    """A directory as it is now."""

    path: Path
    copied: Mapping[str, Copied]
    """What the copy consisted of when it was made: what is still the same there is not read."""
    original: Path
    """What it was copied from."""


def directory_differences(
    before: DirectoryState | None,
    after: DirectoryState,
    rules: Rules,
    *,
    limits: ChangeLimits,
    check: Callable[[], None],
) -> Iterator[Found]:
    """Yield where two copies of a directory differ, in the order of the paths.

    Args:
        before: A copy; None is the directory that the other one was copied from.
        after: The other one, copied from the same.
        rules: What counts as a difference.
        limits: What is kept of files.
        check: Called before each file; what it raises ends the comparison.

    Raises:
        OSError: When a directory cannot be read.
        UniverseError: When what was copied has been changed since, so that it is not known what was there.
    """
    two = _Side(after.path, entries_inside(after.path, check), after.copied)
    if before is None:
        one = _Side(after.original, {name: copied.copy for name, copied in after.copied.items()}, after.copied)
    else:
        one = _Side(before.path, entries_inside(before.path, check), before.copied)
    contents = _Contents(limits, check)
    for name in sorted({*one.entries, *two.entries}, key=lambda name: name.split(os.sep)):
        check()
        path, is_ignored = _placed(name, rules)
        if not is_ignored and not _is_same(name, one, two, check):
            if before is None and one.copied.get(name) is not None:
                _see_whether_unchanged(one, name)
            yield path, contents.of(one, name), contents.of(two, name)


@dataclass(frozen=True, slots=True)
class _Side:
    """One of the two directories that are compared."""

    path: Path
    entries: Mapping[str, Entry]
    copied: Mapping[str, Copied]

    def untouched(self, name: str) -> Entry | None:
        """Return what a file was copied from that has not been written to since."""
        copied = self.copied.get(name)
        return copied.source if copied is not None and self.entries[name] == copied.copy else None


def _is_same(name: str, before: _Side, after: _Side, check: Callable[[], None]) -> bool:
    one, two = before.entries.get(name), after.entries.get(name)
    if one is None or two is None or (one.kind, one.target) != (two.kind, two.target) or one.kind == "other":
        return False
    if one.kind != "file":
        return True
    if (one.mode, one.size) != (two.mode, two.size):
        return False
    source = before.untouched(name)
    if source is not None and source == after.untouched(name):
        return True
    return _is_same_content(name, before.path, after.path, check)


def _see_whether_unchanged(original: _Side, name: str) -> None:
    try:
        is_unchanged = look_at(original.path / name) == original.copied[name].source
    except OSError:
        is_unchanged = False
    if not is_unchanged:
        raise UniverseError(f"{original.path / name} has been changed since it was copied: what was there is not known")


def _placed(name: str, rules: Rules) -> tuple[Any, bool]:
    """Return a name as the path of a difference, and whether it is ignored."""
    path: Any = None
    where = rules.top
    is_ignored = rules.ignores(where)
    for segment in name.split(os.sep):
        segment = _readable(segment)
        path, where = (path, segment), rules.below(where, segment)
        is_ignored = is_ignored or rules.ignores(where)
    return path, is_ignored


def _is_same_content(name: str, before: Path, after: Path, check: Callable[[], None]) -> bool:
    try:
        ours, its = chunks_inside(before, name, check), chunks_inside(after, name, check)
        while True:
            chunk, other = next(ours, b""), next(its, b"")
            if chunk != other:
                return False
            if not chunk:
                return True
    except OSError:
        return False


def told_whether_kept(found: Iterable[Found], limits: ChangeLimits) -> StateChanges:
    """Keep of differences what the limits let through, and name those of which the content is not kept."""
    # What is in the files was bounded when they were read; in base64 it comes to less than twice as much.
    changes = bounded(found, replace(limits, total_bytes=2 * limits.total_bytes + _ENTRIES_BYTES))
    not_kept = tuple(change.path for change in changes.changes if not _is_kept(change.after) or _is_odd(change.before))
    return replace(changes, not_kept=not_kept)


def _is_kept(entry: Any) -> bool:
    if entry is MISSING:
        return True
    is_known = entry["type"] in ("directory", "symlink") or bool({"text", "base64"} & entry.keys())
    return is_known and not _is_odd(entry)


def _is_odd(entry: Any) -> bool:
    return entry is not MISSING and "bytes" in entry


def is_unread(entry: Mapping[str, Any]) -> bool:
    """Whether nothing is known of what is in a file."""
    return entry.get("type") == "file" and not {"text", "base64", "sha256"} & entry.keys()


class _Contents:
    """Describes entries, and keeps so much of what is in files."""

    def __init__(self, limits: ChangeLimits, check: Callable[[], None]) -> None:
        self._file_bytes = limits.file_bytes
        self._left_bytes = limits.total_bytes
        self._hashed_bytes = _HASHED_BYTES
        self._check = check

    def of(self, side: _Side, name: str) -> Any:
        """Return what is kept of an entry, or `MISSING`."""
        entry = side.entries.get(name)
        if entry is None:
            return MISSING
        most_bytes = min(self._file_bytes, self._left_bytes)
        found = described(side.path, name, entry, self._check, most_bytes=most_bytes, hashed_bytes=self._hashed_bytes)
        self._left_bytes -= len(found.get("text", "")) + len(found.get("base64", ""))
        self._hashed_bytes -= entry.size if "sha256" in found else 0
        return found | _whole_bytes(name)


def _readable(name: str) -> str:
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _whole_bytes(name: str) -> dict[str, str]:
    """Return what tells a name that is no UTF-8 from one that reads the same."""
    return {"bytes": base64.b64encode(os.fsencode(name)).decode()} if _readable(name) != name else {}


def described(
    top: Path, name: str, entry: Entry, check: Callable[[], None], *, most_bytes: int, hashed_bytes: int = 2**62
) -> dict[str, Any]:
    """Return an entry as JSON.

    Args:
        top: The directory.
        name: Its path in there.
        entry: What it is.
        check: Called while a file is read; what it raises ends that.
        most_bytes: Bytes of content up to which it is in the result.
        hashed_bytes: Bytes up to which a longer one is read for its hash.
    """
    if entry.kind == "symlink":
        return {"type": "symlink", "target": _readable(entry.target)} | _whole_bytes(entry.target)
    if entry.kind != "file":
        return {"type": entry.kind}
    made: dict[str, Any] = {"type": "file", "mode": f"{entry.mode:o}"}
    if entry.size > max(most_bytes, hashed_bytes):
        return made | {"size": entry.size}
    try:
        chunks = chunks_inside(top, name, check, most_bytes=entry.size)
        if entry.size > most_bytes:
            digest = hashlib.sha256()
            for chunk in chunks:
                digest.update(chunk)
            return made | {"size": entry.size, "sha256": digest.hexdigest()}
        content = b"".join(chunks)
    except OSError:
        return made | {"size": entry.size}
    try:
        return made | {"text": content.decode()}
    except UnicodeDecodeError:
        return made | {"base64": base64.b64encode(content).decode()}
