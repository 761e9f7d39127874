"""Where in the data an error of pydantic's is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

__all__ = ["place_in"]


def place_in(data: Any, loc: Sequence[str | int]) -> tuple[str | int, ...]:
    """Return the part of an error's `loc` that is in the data; the rest names branches of unions."""
    kept: list[str | int] = []
    for part in loc:
        if isinstance(data, Mapping) and part in data:
            data = cast("Mapping[str | int, Any]", data)[part]
        elif isinstance(data, list) and isinstance(part, int) and part < len(cast("list[Any]", data)):
            data = cast("list[Any]", data)[part]
        else:
            continue
        kept.append(part)
    return tuple(kept)
