"""Continuous batching: every sequence under way is one row, and a step gives each row its next token.

New requests join between steps. Rows that sample from the same weights form one `RunningBatch`.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from agent_env.engine.architecture import Architecture
from agent_env.engine.choosing import RowSettings, choose, row_key
from agent_env.engine.model import Rope, Weights, hidden_states
from agent_env.engine.prefixes import PrefixStore
from agent_env.engine.rows import RowCache

__all__ = ["RunningBatch", "SampleJob", "SampledSequence"]

PREFILL_TOKENS = 16384
"""Tokens, padding included, that are read at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledSequence:
    """One finished sample."""

    tokens: Sequence[int]
    logprobs: Sequence[float]
    stopped: bool
    """True where a stop token or string ended it, False where its length did."""


@dataclass(slots=True, kw_only=True, eq=False)
class SampleJob:
    """One sample request. Its fields from `sequences` on are the sampler's to fill."""

    prompt: NDArray[np.int64]
    samples: int
    max_tokens: int
    temperature: float
    top_k: int
    top_p: float
    seed: int
    stop_tokens: frozenset[int]
    stop_strings: tuple[bytes, ...]
    prompt_logprobs_from: int | None
    """The first prompt position to score, None for none."""
    sequences: list[SampledSequence | None] = field(default_factory=list[SampledSequence | None])
    prompt_logprobs: NDArray[np.float32] | None = None
    reused_tokens: int = 0
    """Prompt tokens whose keys and values were remembered."""
    cancelled: bool = False

    @property
    def done(self) -> bool:
        """Whether every sample has ended."""
        return len(self.sequences) == self.samples and None not in self.sequences


@dataclass(slots=True, eq=False)
class Row:
    """One sample under way."""

    job: SampleJob
    sample: int
    key: int
    tokens: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])


class RunningBatch:
    """The sequences that sample from one set of weights.

    Every method that others call runs in inference mode: what it keeps was made in it, and is not to be changed outside.
    """

    def __init__(
        self,
        architecture: Architecture,
        rope: Rope,
        owner: Hashable,
        weights: Weights,
        prefixes: PrefixStore,
        token_bytes: Sequence[bytes] | None,
    ) -> None:
        self._architecture = architecture
        self._rope = rope
        self._owner = owner
        self._weights = weights
        self._prefixes = prefixes
        self._token_bytes = token_bytes
        self._cache = RowCache(architecture)
        self._rows: list[Row] = []
        self._last = np.empty(0, np.int64)
        self._settings: RowSettings | None = None

    def __len__(self) -> int:
        return len(self._rows)

    @torch.inference_mode()
    def admit(self, jobs: Sequence[SampleJob]) -> list[SampleJob]:
        """Read the prompts of new requests and draw their first tokens. Returns the requests that ended with that."""
        leaders: dict[bytes, SampleJob] = {}
        scored = [job for job in jobs if job.prompt_logprobs_from is not None]
        for job in jobs:
            if job.prompt_logprobs_from is None:
                leaders.setdefault(job.prompt.tobytes(), job)
        # Equal prompts are read once: the first request's pass remembers the prompt, the others find it.
        first = list(leaders.values())
        led = {id(job) for job in first}
        finished: list[SampleJob] = []
        for wave in (scored, first, [job for job in jobs if job.prompt_logprobs_from is None and id(job) not in led]):
            rows: list[Row] = []
            others: list[Row] = []
            for job in wave:
                job.sequences = [None] * job.samples
                made = [Row(job, sample, row_key(job.seed, sample)) for sample in range(job.samples)]
                rows += made[:1]
                others += made[1:]
            finished += self._read(rows)
            finished += self._read(others)
        return finished

    @torch.inference_mode()
    def step(self) -> list[SampleJob]:
        """Give every row its next token. Returns the requests that have ended."""
        tokens = torch.from_numpy(self._last)[:, None]
        positions = torch.from_numpy(self._cache.lengths.copy())[:, None]
        attend = self._cache.attend(0, len(self._rows), positions)
        states = hidden_states(self._architecture, self._weights, self._rope, tokens, positions, attend)
        self._cache.lengths += 1
        logits = F.linear(states[:, 0], self._weights.unembed)
        return self._draw(0, logits)

    @torch.inference_mode()
    def shrink(self) -> None:
        """Give back the buffers, if no row needs them."""
        if not self._rows:
            self._cache = RowCache(self._architecture)

    @torch.inference_mode()
    def cancel(self) -> list[SampleJob]:
        """Take out the rows whose request was cancelled. Returns those requests."""
        cancelled: dict[int, SampleJob] = {}
        for at in reversed(range(len(self._rows))):
            job = self._rows[at].job
            if job.cancelled:
                cancelled[id(job)] = job
                self._remove(at)
        return list(cancelled.values())

    def _read(self, rows: Sequence[Row]) -> list[SampleJob]:
        """Read the rows' prompts, in parts of similar length."""
        found = [None if row.job.prompt_logprobs_from is not None else self._find(row) for row in rows]
        known = [0 if match is None else match[1] for match in found]
        fresh = [len(row.job.prompt) - length for row, length in zip(rows, known, strict=True)]
        order = sorted(range(len(rows)), key=lambda at: fresh[at])
        finished: list[SampleJob] = []
        while order:
            shortest = fresh[order[0]]
            part = [at for at in order if fresh[at] <= max(8, 2 * shortest)]
            part = part[: max(1, PREFILL_TOKENS // fresh[part[-1]])]
            order = order[len(part) :]
            finished += self._read_part([rows[at] for at in part], [found[at] for at in part])
        return finished

    def _find(self, row: Row) -> tuple[Tensor, int] | None:
        match = self._prefixes.find(self._owner, row.job.prompt)
        if match is None:
            return None
        # The last token is read again whatever is known: the first draw needs its state.
        length = min(match[1], len(row.job.prompt) - 1)
        if row.sample == 0:
            row.job.reused_tokens = length
        return match[0].states[:, :, :, :length], length

    def _read_part(self, rows: Sequence[Row], found: Sequence[tuple[Tensor, int] | None]) -> list[SampleJob]:
        known = np.array([0 if match is None else match[1] for match in found])
        lengths = np.array([len(row.job.prompt) for row in rows])
        fresh = lengths - known
        first = len(self._rows)
        self._cache.append(known, int((known + fresh.max()).max()))
        for at, match in enumerate(found):
            if match is not None:
                self._cache.write(first + at, match[0])
        tokens = np.zeros((len(rows), int(fresh.max())), np.int64)
        for at, row in enumerate(rows):
            tokens[at, : fresh[at]] = row.job.prompt[known[at] :]
        # Padding positions stay inside the tables; what they write lies beyond a row's length.
        positions = np.minimum(known[:, None] + np.arange(tokens.shape[1])[None, :], self._architecture.context - 1)
        places = torch.from_numpy(positions)
        attend = self._cache.attend(first, first + len(rows), places)
        states = hidden_states(self._architecture, self._weights, self._rope, torch.from_numpy(tokens), places, attend)
        self._cache.lengths[first:] = lengths
        self._rows += rows
        self._last = np.concatenate([self._last, np.zeros(len(rows), np.int64)])
        self._settings = None
        for at, row in enumerate(rows):
            if row.job.prompt_logprobs_from is not None and row.sample == 0:
                row.job.prompt_logprobs = self._score(row.job, states[at])
            if row.sample == 0 and fresh[at] > 1:
                self._prefixes.add(self._owner, row.job.prompt, self._cache.read(first + at, int(lengths[at])))
        last = states[torch.arange(len(rows)), torch.from_numpy(fresh - 1)]
        return self._draw(first, F.linear(last, self._weights.unembed))

    def _score(self, job: SampleJob, states: Tensor) -> NDArray[np.float32]:
        """The prompt tokens' log-probabilities, NaN where none was asked for or nothing goes before."""
        start = max(1, job.prompt_logprobs_from or 0)
        scores = np.full(len(job.prompt), np.nan, np.float32)
        logits = F.linear(states[start - 1 : len(job.prompt) - 1], self._weights.unembed)
        scores[start:] = -F.cross_entropy(logits, torch.from_numpy(job.prompt[start:]), reduction="none").numpy()
        return scores

    def _draw(self, first: int, logits: Tensor) -> list[SampleJob]:
        """Draw the next token of the rows from `first` on, and take out those that end with it."""
        settings = self._row_settings()
        rows = self._rows[first:]
        part = RowSettings(
            temperatures=settings.temperatures[first:],
            top_ks=settings.top_ks[first:],
            top_ps=settings.top_ps[first:],
            keys=settings.keys[first:],
        )
        choice = choose(logits, part, np.array([len(row.tokens) for row in rows]))
        self._last[first:] = choice.tokens.numpy()
        finished: list[SampleJob] = []
        ended: list[int] = []
        drawn = zip(rows, choice.tokens.tolist(), choice.logprobs.tolist(), strict=True)
        for at, (row, token, logprob) in enumerate(drawn, start=first):
            row.tokens.append(token)
            row.logprobs.append(logprob)
            job = row.job
            stopped = token in job.stop_tokens or (bool(job.stop_strings) and self._stops(row))
            if stopped or len(row.tokens) >= job.max_tokens:
                job.sequences[row.sample] = SampledSequence(tokens=row.tokens, logprobs=row.logprobs, stopped=stopped)
                ended.append(at)
                if job.done:
                    finished.append(job)
        for at in reversed(ended):
            self._remember(at)
            self._remove(at)
        return finished

    def _stops(self, row: Row) -> bool:
        """Whether the newest token completes a stop string."""
        table = self._token_bytes
        assert table is not None  # a request with stop strings is refused otherwise
        for stop in row.job.stop_strings:
            # The string ends inside the newest token, so it begins at most its own length of tokens earlier.
            recent = b"".join(table[token] for token in row.tokens[-len(stop) - 1 :] if token < len(table))
            if stop in recent:
                return True
        return False

    def _remember(self, at: int) -> None:
        """Keep a finished row's keys and values: the next prompt of the rollout extends it."""
        row = self._rows[at]
        length = int(self._cache.lengths[at])
        tokens = np.concatenate([row.job.prompt, np.array(row.tokens, np.int64)])[:length]
        if len(row.tokens) > 1:
            self._prefixes.add(self._owner, tokens, self._cache.read(at, length))

    def _remove(self, at: int) -> None:
        """Take a row out; the last one takes its place."""
        self._cache.remove(at)
        self._rows[at] = self._rows[-1]
        self._rows.pop()
        self._last[at] = self._last[-1]
        self._last = self._last[:-1].copy()
        self._settings = None

    def _row_settings(self) -> RowSettings:
        if self._settings is None:
            jobs = [row.job for row in self._rows]
            self._settings = RowSettings(
                temperatures=np.array([job.temperature for job in jobs], np.float32),
                top_ks=np.array([job.top_k for job in jobs], np.int64),
                top_ps=np.array([job.top_p for job in jobs], np.float32),
                keys=np.array([row.key for row in self._rows], np.uint64),
            )
        return self._settings
