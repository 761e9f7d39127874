"""Conditions on runs, written as an SQL expression over documented columns.

An expression can read those columns, compare and compute, and nothing else: an authorizer refuses the rest, whatever it is
written as, and the reader's time limit ends what takes too long.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from agent_env.errors import UsageError
from agent_env.runs._batch import dead_writers
from agent_env.runs._reading import around_damage, ended_now, is_corrupt, state_now
from agent_env.runs._schema import GROUPS_BELOW, bounds_below
from agent_env.runs.record import RunOrder

__all__ = ["COLUMNS", "Condition", "keys_where"]

_TOOLS = "tools_by_name"
"""Makes of the counts by tool, as they lie on disk, what is exported."""

COLUMNS: Mapping[str, str] = MappingProxyType(
    {
        "run_id": "r.run_id",
        "group": "g.name",
        "training": "g.training",
        "split": "g.split",
        "step": "g.step",
        "task_id": "r.task_id",
        "attempt": "r.attempt",
        "rollout": "r.rollout",
        "state": state_now("{dead}"),
        "cut": "r.cut",
        "failure_kind": "r.failure_kind",
        "failure_step": "r.failure_step",
        "failure_message": "r.failure_message",
        "reward": "r.reward",
        "scores": "r.scores",
        "labels": "r.labels",
        "policy_step": "r.labels ->> 'policy_step'",
        "model": "r.labels ->> 'model'",
        "renderer": "r.labels ->> 'renderer'",
        "bundle_name": "r.bundle_name",
        "bundle_version": "r.bundle_version",
        "event_count": "r.events",
        "messages": "r.messages",
        "calls": "r.calls",
        "call_errors": "r.call_errors",
        "turns": "r.turns",
        "tools": f"{_TOOLS}(r.tools)",
        "times": "r.times",
        "prompt_tokens": "r.prompt_tokens",
        "sampled_tokens": "r.sampled_tokens",
        "duration_s": "max(0.0, coalesce(r.ended_at_s, r.last_at_s) - r.opened_at_s)",
        "opened_at": "datetime(r.opened_at_s, 'unixepoch')",
        "ended_at": f"datetime({ended_now('{dead}')}, 'unixepoch')",
        "opened_at_s": "r.opened_at_s",
        "ended_at_s": ended_now("{dead}"),
        "last_at_s": "r.last_at_s",
    }
)
"""What an expression may name, and what that is."""

_RUN = f"""
WITH run AS NOT MATERIALIZED (
    SELECT r.key AS "run key", r.tools AS "run tools", {", ".join(f'{sql} AS "{name}"' for name, sql in COLUMNS.items())}
    FROM runs r JOIN groups g ON g.key = r.group_key
    {{group}}
)
"""
_IN_GROUP = f"WHERE r.group_key IN ({GROUPS_BELOW})"
_TABLES = frozenset({"runs", "groups", "run", ""})
_FUNCTIONS = re.compile(
    r"abs|avg|ceil|coalesce|count|date|datetime|floor|glob|ifnull|iif|instr|json_array_length|json_extract|json_type|julianday"
    r"|length|like|ln|log|lower|ltrim|max|min|nullif|round|rtrim|sign|sqrt|strftime|substr|substring|sum|time|total|trim"
    r"|tools_by_name|typeof|unixepoch|upper|->>?",
    re.IGNORECASE,
)
_ALLOWED_ACTIONS = frozenset({sqlite3.SQLITE_SELECT})
_PLAIN_TOOLS = re.compile(r'\{(?:"[\w.-]+":\[\d+,\d+\],?)*\}')
_STORED = ("calls", "errors")
"""What is stored of each tool, in that order."""
_ASKED_OF_TOOL = re.compile(rf"'(?P<tool>\$\.[^']+)\.(?P<what>{'|'.join(_STORED)})'")
_CHARS = 10_000
_AT_ONCE = 500
_TOKEN = re.compile(
    r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|`[^`]*`|\[[^\]]*\]|--[^\n]*|/\*.*?(?:\*/|\Z)|[A-Za-z_][A-Za-z_0-9$]*|\s+|.""",
    re.DOTALL,
)

_REFUSED = {
    ";": "one expression, without ';'",
    **{quote: f"{quote} is opened and not closed" for quote in "'\"`["},
    **{sign: f"write the value itself, and no placeholder {sign}" for sign in "?:@$"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """Which runs are meant."""

    sql: str
    """Ready to be put into a statement."""
    group: str

    @classmethod
    def of(cls, where: str | None, *, group: str = "") -> Condition:
        """Read a condition.

        Raises:
            UsageError: When `where` is no single expression.
        """
        return cls(sql=_expression(where) if where is not None and where.strip() else "true", group=group)


def keys_where(
    conn: sqlite3.Connection,
    condition: Condition,
    *,
    order: RunOrder,
    limit: int,
    after: int | None = None,
    until: int | None = None,
) -> tuple[list[int], int]:
    """The keys of some runs; and how many more there may be whose part of the file is damaged.

    Args:
        conn: A connection that nobody else uses meanwhile.
        condition: Which runs.
        order: Newest or oldest first, by when they were filed.
        limit: How many.
        after: Only those that come after this key in that order.
        until: Only those with this key or a smaller one.

    Raises:
        UsageError: When the condition names what is not there, or may not be used.
        sqlite3.Error: When the index cannot be read, or it takes too long.
    """
    is_newest = order is RunOrder.NEWEST
    most = 2**62 if until is None else until
    least = 0
    if after is not None:
        most, least = (min(most, after - 1), 0) if is_newest else (most, after)
    question = _Question(conn, condition, is_newest=is_newest)
    try:
        return question.ask(f'"run key" > {least:d} AND "run key" <= {most:d}', limit), 0
    except sqlite3.DatabaseError as exc:
        if not is_corrupt(exc):
            raise
    # An index has the keys of all runs, also of those in a page of the file that is damaged: the others are asked by key.
    direction = "DESC" if is_newest else "ASC"
    candidates = [
        int(row[0])
        for row in conn.execute(
            f"SELECT key FROM runs INDEXED BY runs_by_task WHERE key > ? AND key <= ? ORDER BY key {direction}",
            (least, most),
        )
    ]
    keys: list[int] = []
    damaged = 0
    for first in range(0, len(candidates), _AT_ONCE):
        found, unreadable = around_damage(candidates[first : first + _AT_ONCE], question.ask_by_key)
        keys += found
        damaged += unreadable
        if len(keys) >= limit:
            break
    return keys[:limit], damaged


class _Question:
    """One condition, asked of one moment of the index."""

    def __init__(self, conn: sqlite3.Connection, condition: Condition, *, is_newest: bool) -> None:
        self._conn = conn
        run = _RUN.format(dead=", ".join(map(str, dead_writers(conn))), group=_IN_GROUP if condition.group else "")
        direction = "DESC" if is_newest else "ASC"
        self._sql = f"""{run} SELECT "run key" FROM run WHERE ({condition.sql}
            ) AND {{span}} ORDER BY "run key" {direction} LIMIT {{limit}}"""
        self._values = bounds_below(condition.group)

    def ask(self, span: str, limit: int) -> list[int]:
        """The keys in `span`, an expression of ours."""
        start, _, end = self._sql.rpartition("{span}")
        sql = f"{start}{span}{end.format(limit=limit)}"
        with _restricted(self._conn) as refused:
            try:
                return [int(row[0]) for row in self._conn.execute(sql, self._values)]
            except sqlite3.Error as exc:
                code = getattr(exc, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
                if code not in {sqlite3.SQLITE_ERROR, sqlite3.SQLITE_AUTH}:
                    raise
                raise UsageError(f"where: {_explained(exc, refused)}") from exc

    def ask_by_key(self, keys: Sequence[int]) -> list[int]:
        """Those of `keys` that the condition is true of."""
        return self.ask(f'"run key" IN ({", ".join(map(str, keys))})', len(keys))


@contextmanager
def _restricted(conn: sqlite3.Connection) -> Generator[list[str]]:
    """Let statements read runs and compute; yields what was refused."""
    refused: list[str] = []

    def authorize(action: int, first: str | None, second: str | None, *_: Any) -> int:
        if action in _ALLOWED_ACTIONS:
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_READ:
            name, is_allowed = f"the table {first}", (first or "").lower() in _TABLES
        elif action == sqlite3.SQLITE_FUNCTION:
            name, is_allowed = f"the function {second}", _FUNCTIONS.fullmatch(second or "") is not None
        else:
            name, is_allowed = "that", False
        if is_allowed:
            return sqlite3.SQLITE_OK
        refused.append(name)
        return sqlite3.SQLITE_DENY

    conn.create_function(_TOOLS, 1, _tools_by_name, deterministic=True)
    conn.set_authorizer(authorize)
    try:
        yield refused
    finally:
        conn.set_authorizer(None)


def _tools_by_name(text: Any) -> Any:
    try:
        if _PLAIN_TOOLS.fullmatch(text):  # four times as fast, which a million runs need
            pairs = text.replace(',"', ';"').replace(",", ',"errors":').replace("[", '{"calls":').replace("]", "}")
            return pairs.replace(";", ",")
        tools = json.loads(text)
        named = {tool: {"calls": calls, "errors": errors} for tool, (calls, errors) in tools.items()}
        return json.dumps(named, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace").decode()
    except (ValueError, TypeError, AttributeError):
        return text  # damaged: who asks for a part of it is told


def _expression(where: str) -> str:
    """`where` as it can be put between parentheses: nothing in it reaches beyond them."""
    if len(where) > _CHARS:
        raise UsageError(f"where: at most {_CHARS} characters, not {len(where)}")
    if "\x00" in where or where != where.encode("utf-8", "replace").decode("utf-8"):
        raise UsageError("where: it has characters that are no text")
    depth = 0
    tokens: list[str] = []
    found = _TOKEN.findall(where)
    for at, token in enumerate(found):
        if token in _REFUSED:
            raise UsageError(f"where: {_REFUSED[token]}")
        depth += (token == "(") - (token == ")")
        if depth < 0:
            raise UsageError("where: a parenthesis is closed that was not opened")
        if token.startswith(("--", "/*")):
            token = " "
        elif token.lower() == "group" and not _is_by(found[at + 1 :]):
            token = '"group"'
        tokens.append(token)
    if depth:
        raise UsageError("where: a parenthesis is opened and not closed")
    _ask_as_stored(tokens)
    return "".join(tokens)


def _ask_as_stored(tokens: list[str]) -> None:
    """Have `tools ->> '$.pay.errors'` asked of what is stored: a fourth of the time, with a million runs."""
    if any(token.lower() == "as" for token in tokens):
        return  # something else may be called `tools`
    said = [at for at, token in enumerate(tokens) if not token.isspace()]
    for first, *arrow, last in zip(said, said[1:], said[2:], said[3:], said[4:], strict=False):
        asked = _ASKED_OF_TOOL.fullmatch(tokens[last])
        if asked and tokens[first].lower() == "tools" and [tokens[at] for at in arrow] == ["-", ">", ">"]:
            tokens[first] = "[run tools]"
            tokens[last] = f"'{asked['tool']}[{_STORED.index(asked['what'])}]'"


def _is_by(tokens: list[str]) -> bool:
    following = next((token for token in tokens if not token.isspace()), "")
    return following.lower() == "by"


def _explained(exc: sqlite3.Error, refused: list[str]) -> str:
    text = str(exc)
    if refused:
        return (
            f"{refused[0]} cannot be used here, only the columns of runs ({', '.join(COLUMNS)}) and functions of them"
        )
    if text.startswith("no such column: "):
        return f"there is no column {text.partition(': ')[2]!r}, only {', '.join(COLUMNS)}"
    return f'{text}; it is an SQL expression such as "reward < 0.5 AND step > 10" over {", ".join(COLUMNS)}'
