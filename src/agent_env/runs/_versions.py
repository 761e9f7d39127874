"""The run index's tables, version by version, and how a file gets from one to the next."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Generator

from agent_env._version import __version__

__all__ = ["NEW_WORDS", "SCHEMA_VERSION", "apply_versions"]

_COUNTERS = """
    INSERT INTO tallies SELECT {row}.group_key, 'state', {row}.state, {one} WHERE true
        ON CONFLICT DO UPDATE SET n = n + {one};
    INSERT INTO tallies SELECT {row}.group_key, 'cut', {row}.cut, {one} WHERE {row}.cut IS NOT NULL
        ON CONFLICT DO UPDATE SET n = n + {one};
    INSERT INTO tallies SELECT {row}.group_key, 'failure', {row}.failure_kind, {one} WHERE {row}.failure_kind IS NOT NULL
        ON CONFLICT DO UPDATE SET n = n + {one};
    UPDATE groups SET
        scored = scored + {one},
        shift = coalesce(shift, {row}.reward),
        total = total + {one} * ({row}.reward - coalesce(shift, {row}.reward)),
        squares = squares + {one} * ({row}.reward - coalesce(shift, {row}.reward))
            * ({row}.reward - coalesce(shift, {row}.reward))
        WHERE key = {row}.group_key AND {row}.reward IS NOT NULL AND {row}.state = 'completed';
"""
_ADD = _COUNTERS.format(row="NEW", one="1")
_TAKE = _COUNTERS.format(row="OLD", one="-1")

_VERSION_1 = f"""
CREATE TABLE writers (
    key INTEGER PRIMARY KEY AUTOINCREMENT,
    pid INTEGER NOT NULL, started TEXT NOT NULL, boot TEXT NOT NULL, pid_space TEXT NOT NULL,
    opened_at_s REAL NOT NULL, last_write_at_s REAL NOT NULL, closed_at_s REAL
) STRICT;
CREATE INDEX writers_open ON writers (key) WHERE closed_at_s IS NULL;

-- Counts and moments are kept by triggers, so that a page over a million runs reads a row per group.
-- The moments are of reward - shift, where shift is the group's first reward: near it, squares do not cancel.
CREATE TABLE groups (
    key INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    training TEXT, split TEXT, step INTEGER,
    first_at_s REAL NOT NULL, last_at_s REAL NOT NULL,
    scored INTEGER NOT NULL DEFAULT 0, shift REAL,
    total REAL NOT NULL DEFAULT 0, squares REAL NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX groups_by_place ON groups (training, split, step);

CREATE TABLE tallies (
    group_key INTEGER NOT NULL, what TEXT NOT NULL, kind TEXT NOT NULL, n INTEGER NOT NULL,
    PRIMARY KEY (group_key, what, kind)
) STRICT, WITHOUT ROWID;

CREATE TABLE runs (
    key INTEGER PRIMARY KEY AUTOINCREMENT,
    run_id TEXT NOT NULL UNIQUE,
    record_version INTEGER NOT NULL,
    group_key INTEGER NOT NULL REFERENCES groups (key),
    writer_key INTEGER NOT NULL REFERENCES writers (key),
    task_id TEXT NOT NULL, attempt INTEGER NOT NULL, rollout INTEGER NOT NULL,
    state TEXT NOT NULL, cut TEXT, reward REAL,
    failure_kind TEXT, failure_step TEXT, failure_message TEXT,
    scores TEXT NOT NULL, labels TEXT NOT NULL,
    bundle_name TEXT NOT NULL, bundle_version TEXT NOT NULL,
    events INTEGER NOT NULL, messages INTEGER NOT NULL, calls INTEGER NOT NULL, call_errors INTEGER NOT NULL,
    turns INTEGER NOT NULL,
    opened_at_s REAL NOT NULL, ended_at_s REAL, last_at_s REAL NOT NULL
) STRICT;
CREATE UNIQUE INDEX runs_by_task ON runs (group_key, task_id, attempt, rollout);
CREATE INDEX runs_by_state ON runs (group_key, state, task_id, attempt, rollout);
CREATE INDEX runs_running ON runs (writer_key, group_key) WHERE state = 'running';

-- What a list does not show: params and tags, as compressed JSON.
CREATE TABLE heads (run_key INTEGER PRIMARY KEY, codec INTEGER NOT NULL, body BLOB NOT NULL) STRICT;

-- A run's events in order: some lines of JSON, compressed. codec 1 is zstd.
CREATE TABLE chunks (
    key INTEGER PRIMARY KEY,
    run_key INTEGER NOT NULL, first_seq INTEGER NOT NULL, count INTEGER NOT NULL,
    raw_bytes INTEGER NOT NULL, codec INTEGER NOT NULL, body BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX chunks_by_run ON chunks (run_key, first_seq);

CREATE TRIGGER runs_inserted AFTER INSERT ON runs BEGIN {_ADD} END;
CREATE TRIGGER runs_deleted AFTER DELETE ON runs BEGIN
    {_TAKE}
    DELETE FROM heads WHERE run_key = OLD.key;
    DELETE FROM chunks WHERE run_key = OLD.key;
END;
CREATE TRIGGER runs_updated AFTER UPDATE OF state, cut, reward, failure_kind ON runs
WHEN OLD.state IS NOT NEW.state OR OLD.cut IS NOT NEW.cut OR OLD.reward IS NOT NEW.reward
    OR OLD.failure_kind IS NOT NEW.failure_kind
BEGIN {_TAKE} {_ADD} END;
"""

_SUMS = """
    UPDATE groups SET
        finished = finished + {one},
        messages = messages + {one} * {row}.messages,
        calls = calls + {one} * {row}.calls,
        call_errors = call_errors + {one} * {row}.call_errors,
        turns = turns + {one} * {row}.turns,
        seconds = seconds + {one} * max(0.0, coalesce({row}.ended_at_s, {row}.last_at_s) - {row}.opened_at_s),
        counted = counted + {one} * ({row}.sampled_tokens IS NOT NULL),
        prompt_tokens = prompt_tokens + {one} * coalesce({row}.prompt_tokens, 0),
        sampled_tokens = sampled_tokens + {one} * coalesce({row}.sampled_tokens, 0)
        WHERE key = {row}.group_key AND {row}.state = 'completed';
"""
_ADD_2 = _ADD + _SUMS.format(row="NEW", one="1")
_TAKE_2 = _TAKE + _SUMS.format(row="OLD", one="-1")

NEW_WORDS = """
CREATE VIRTUAL TABLE words USING fts5(text, content='', columnsize=0, detail=none,
    tokenize="unicode61 categories 'L* N* Co So Mn Mc'");
"""

_VERSION_2 = f"""
-- Sums over the group's completed runs, kept by triggers; `counted` of them say how many tokens they had.
ALTER TABLE groups ADD COLUMN finished INTEGER NOT NULL DEFAULT 0;
ALTER TABLE groups ADD COLUMN messages INTEGER NOT NULL DEFAULT 0;
ALTER TABLE groups ADD COLUMN calls INTEGER NOT NULL DEFAULT 0;
ALTER TABLE groups ADD COLUMN call_errors INTEGER NOT NULL DEFAULT 0;
ALTER TABLE groups ADD COLUMN turns INTEGER NOT NULL DEFAULT 0;
ALTER TABLE groups ADD COLUMN seconds REAL NOT NULL DEFAULT 0;
ALTER TABLE groups ADD COLUMN counted INTEGER NOT NULL DEFAULT 0;
ALTER TABLE groups ADD COLUMN prompt_tokens INTEGER NOT NULL DEFAULT 0;
ALTER TABLE groups ADD COLUMN sampled_tokens INTEGER NOT NULL DEFAULT 0;

-- tools: {{"tool": [calls, errors]}}; times: seconds by what they went to.
ALTER TABLE runs ADD COLUMN tools TEXT NOT NULL DEFAULT '{{}}';
ALTER TABLE runs ADD COLUMN times TEXT NOT NULL DEFAULT '{{}}';
ALTER TABLE runs ADD COLUMN prompt_tokens INTEGER;
ALTER TABLE runs ADD COLUMN sampled_tokens INTEGER;
CREATE INDEX runs_by_reward ON runs (group_key, reward) WHERE state = 'completed' AND reward IS NOT NULL;
-- With what a task's chart over the steps is drawn from, so that it reads no run.
CREATE INDEX runs_over_steps ON runs (task_id, group_key, state, reward);

-- What the messages were sampled as, by message of the played agent. codec 1 is `_tokens`.
CREATE TABLE tokens (
    key INTEGER PRIMARY KEY,
    run_key INTEGER NOT NULL, message INTEGER NOT NULL, codec INTEGER NOT NULL, body BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX tokens_by_run ON tokens (run_key, message);

-- The words of each chunk, by its key. Those of deleted chunks stay until the index is built anew.
-- Which chunks have a word and not where in them: what is found is read again.
{NEW_WORDS}

-- Words are put in after chunks are written: up to which chunk there are words of this writer's, and chunks.
ALTER TABLE writers ADD COLUMN words_to INTEGER NOT NULL DEFAULT 0;
ALTER TABLE writers ADD COLUMN chunks_to INTEGER NOT NULL DEFAULT 0;
UPDATE writers SET chunks_to = coalesce((SELECT max(key) FROM chunks), 0);
CREATE INDEX writers_without_words ON writers (key) WHERE words_to < chunks_to;

-- last_chunk_deleted: the greatest key of a chunk that was deleted.
-- totals_from, totals_to: of the runs with greater keys than the first, up to the second, tools and times are not known yet.
CREATE TABLE marks (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT, WITHOUT ROWID;
INSERT INTO marks SELECT 'totals_to', key FROM (SELECT max(key) AS key FROM runs) WHERE key IS NOT NULL;

UPDATE groups SET (finished, messages, calls, call_errors, turns, seconds) = (
    SELECT count(*), coalesce(sum(messages), 0), coalesce(sum(calls), 0), coalesce(sum(call_errors), 0),
        coalesce(sum(turns), 0), total(max(0.0, coalesce(ended_at_s, last_at_s) - opened_at_s))
    FROM runs WHERE group_key = groups.key AND state = 'completed'
);

DROP TRIGGER runs_inserted;
DROP TRIGGER runs_deleted;
DROP TRIGGER runs_updated;
CREATE TRIGGER runs_inserted AFTER INSERT ON runs BEGIN {_ADD_2} END;
CREATE TRIGGER runs_deleted AFTER DELETE ON runs BEGIN
    {_TAKE_2}
    INSERT INTO marks SELECT 'last_chunk_deleted', key FROM
        (SELECT max(key) AS key FROM chunks WHERE run_key = OLD.key) WHERE key IS NOT NULL
        ON CONFLICT DO UPDATE SET value = max(value, excluded.value);
    DELETE FROM heads WHERE run_key = OLD.key;
    DELETE FROM chunks WHERE run_key = OLD.key;
    DELETE FROM tokens WHERE run_key = OLD.key;
END;
CREATE TRIGGER runs_updated AFTER UPDATE OF state, cut, reward, failure_kind, messages, calls, call_errors, turns,
    prompt_tokens, sampled_tokens, ended_at_s ON runs
WHEN OLD.state IS NOT NEW.state OR OLD.cut IS NOT NEW.cut OR OLD.reward IS NOT NEW.reward
    OR OLD.failure_kind IS NOT NEW.failure_kind OR NEW.state = 'completed'
BEGIN {_TAKE_2} {_ADD_2} END;
"""

_VERSIONS = {1: _VERSION_1, 2: _VERSION_2}
"""By number. Once released, an entry never changes."""

SCHEMA_VERSION = max(_VERSIONS)
"""The version that this AgentEnv writes."""


def apply_versions(conn: sqlite3.Connection, *, after: int) -> None:
    """Bring a file from version `after`, 0 for an empty one, to this AgentEnv's. Inside a transaction.

    Raises:
        sqlite3.Error: When it cannot be written.
    """
    conn.execute(
        "CREATE TABLE IF NOT EXISTS migrations"
        " (version INTEGER PRIMARY KEY, applied_at_s REAL NOT NULL, agent_env TEXT NOT NULL) STRICT"
    )
    for version in range(after + 1, SCHEMA_VERSION + 1):
        for statement in _statements(_VERSIONS[version]):
            conn.execute(statement)
        conn.execute("INSERT INTO migrations VALUES (?, ?, ?)", (version, time.time(), __version__))


def _statements(script: str) -> Generator[str]:
    # `executescript` would commit the transaction that makes a migration all or nothing.
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
