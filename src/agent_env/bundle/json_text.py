"""JSON in files, read strictly: what Python's reader lets pass, and no store or tool can hold, is an error.

`NaN`, `1e999`, half of a surrogate pair, a key that is there twice. Not what models write: `agent_env.envs.strict_json`
says to them what is wrong.
"""

from __future__ import annotations

import json
from collections import Counter
from enum import StrEnum
from typing import Any, NoReturn

__all__ = ["JsonFault", "JsonFileError", "read_json"]


class JsonFault(StrEnum):
    """What is wrong with a text that is to be JSON."""

    SYNTAX = "syntax"
    DEPTH = "depth"
    NUMBER = "number"
    SURROGATE = "surrogate"
    REPEATED = "repeated"


class JsonFileError(ValueError):
    """A text is no JSON, or none that can be used. `fix` says what to write instead."""

    def __init__(self, fault: JsonFault, what: str, fix: str, *, line: int = 1, column: int = 1) -> None:
        super().__init__(what)
        self.fault = fault
        self.what = what
        """Of a fault in the syntax what the reader says, without the place."""
        self.fix = fix
        self.line = line
        """From 1; where it is not known, 1."""
        self.column = column


def read_json(text: str) -> Any:
    """Return the JSON value that a text is.

    Raises:
        JsonFileError: When it is none, or none that can be used.
    """
    repeated: list[str] = []

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        built = dict(pairs)
        if len(built) != len(pairs):
            repeated.extend(name for name, times in Counter(name for name, _ in pairs).items() if times > 1)
        return built

    try:
        data = json.loads(text, object_pairs_hook=unique, parse_constant=_refuse_constant)
        # One pass in C over what was read: finds 1e999 (infinite once parsed) and halves of surrogate pairs.
        json.dumps(data, allow_nan=False, ensure_ascii=False).encode()
    except json.JSONDecodeError as exc:
        fix = "correct the syntax"
        raise JsonFileError(JsonFault.SYNTAX, exc.msg, fix, line=exc.lineno, column=exc.colno) from None
    except RecursionError:
        raise JsonFileError(JsonFault.DEPTH, "it is nested too deeply", "flatten it") from None
    except UnicodeEncodeError:
        what, fix = "a text holds half of a surrogate pair", "write both halves or neither"
        raise JsonFileError(JsonFault.SURROGATE, what, fix) from None
    except ValueError:
        what, fix = "a number is too large or not finite", "write a finite number, or null"
        raise JsonFileError(JsonFault.NUMBER, what, fix) from None
    if repeated:
        what, fix = f"the key '{repeated[0]}' is there twice", "remove one of the two"
        raise JsonFileError(JsonFault.REPEATED, what, fix)
    return data


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)
