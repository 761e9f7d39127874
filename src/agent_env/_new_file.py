"""A file that is there as a whole, or not at all."""

from __future__ import annotations

import secrets
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from agent_env.errors import UsageError

__all__ = ["new_file"]


@contextmanager
def new_file(target: Path) -> Generator[IO[bytes]]:
    """Write a file that someone asked for by its name; one that is there is replaced.

    A device or a pipe, as /dev/stdout or /dev/null, is written to and not replaced; of a link, what it leads to is.

    Args:
        target: Where it is to be, in a folder that is there.

    Yields:
        What to write into, under a hidden name of its own. When the block ends, it is `target`; when the block raises, it
        is removed. A process that is killed in the block leaves it behind.

    Raises:
        UsageError: When it cannot be written there; also when the block raises an OSError.
    """
    with _said(target), _whole(target) as file:
        yield file


@contextmanager
def _whole(target: Path) -> Generator[IO[bytes]]:
    target = target.resolve() if target.is_symlink() else target
    if target.exists() and not target.is_file():
        with target.open("wb") as file:
            yield file
        return
    building = target.parent / f".agent-env-{secrets.token_hex(8)}.part"
    with building.open("xb") as file:
        try:
            yield file
            file.close()  # what is buffered may not fit any more
            building.replace(target)
        except BaseException:  # also Ctrl-C
            building.unlink(missing_ok=True)
            raise


@contextmanager
def _said(target: Path) -> Generator[None]:
    try:
        yield
    except OSError as exc:
        raise UsageError(f"{target}: {exc.strerror or exc}: choose a file in a folder that can be written") from exc
