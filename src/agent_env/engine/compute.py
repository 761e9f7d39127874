"""The thread that does the arithmetic: it alternates between sampling steps and parts of training requests.

A thread and not a process: torch gives up the interpreter lock inside its operations, and what the web server does
between them is little. Everything that touches tensors happens here.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import torch

from agent_env.engine.architecture import Architecture
from agent_env.engine.model import Rope, Weights
from agent_env.engine.options import EngineOptions
from agent_env.engine.prefixes import PrefixStore
from agent_env.engine.sampler import RunningBatch, SampleJob

__all__ = ["Compute", "SamplerSource"]

IDLE_BATCHES = 4
"""Weights kept ready to sample from while nothing samples from them."""

Work = Generator[None, None, Any]
Done = Callable[[Any], None]
"""Told the result, or the exception that the work raised. Called in the compute thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerSource:
    """Weights to sample from, under a name that is theirs alone."""

    owner: str
    load: Callable[[], Weights]
    """Called in the compute thread when they are needed and not there."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Sample:
    source: SamplerSource
    job: SampleJob
    done: Done
    arrived: float


@dataclass(slots=True, kw_only=True, eq=False)
class _Training:
    work: Work
    done: Done


class Compute:
    """Owner of the compute thread. Its methods may be called from any thread."""

    def __init__(
        self, architecture: Architecture, rope: Rope, token_bytes: list[bytes] | None, options: EngineOptions
    ) -> None:
        self._architecture = architecture
        self._rope = rope
        self._token_bytes = token_bytes
        self._options = options
        self._inbox: queue.SimpleQueue[_Sample | _Training | None] = queue.SimpleQueue()
        self._prefixes = PrefixStore(options.prefix_cache_bytes)
        self._batches: OrderedDict[str, RunningBatch] = OrderedDict()
        self._waiting: deque[_Sample] = deque()
        self._under_way: dict[int, _Sample] = {}
        self._training: deque[_Training] = deque()
        self._sampled_s = self._trained_s = 0.0
        self._ending = False
        self._thread = threading.Thread(target=self._run, name="engine-compute", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End after the step under way; what waits is left undone."""
        self._inbox.put(None)
        self._thread.join()

    def sample(self, source: SamplerSource, job: SampleJob, done: Done) -> None:
        """Queue a sample request; `done` is told the finished job."""
        self._inbox.put(_Sample(source=source, job=job, done=done, arrived=time.monotonic()))

    def train(self, work: Work, done: Done) -> None:
        """Queue training work. Works run one after the other in the order of these calls."""
        self._inbox.put(_Training(work=work, done=done))

    def _run(self) -> None:
        torch.set_num_threads(self._options.threads)
        while not self._ending:
            self._take()
            if self._ending:
                return
            sampling = bool(self._waiting) or any(len(batch) for batch in self._batches.values())
            if not (sampling and self._training):
                self._sampled_s = self._trained_s = 0.0
            started = time.monotonic()
            if self._training and (not sampling or self._trained_s <= self._sampled_s):
                self._train_part()
                self._trained_s += time.monotonic() - started
            elif sampling:
                self._sample_step()
                self._sampled_s += time.monotonic() - started

    def _take(self) -> None:
        """Take in what has arrived; wait where there is nothing to do, and a moment where a wave is arriving."""
        busy = bool(self._training) or any(len(batch) for batch in self._batches.values())
        if not busy and not self._waiting:
            self._put_in_place(self._inbox.get())
        while True:
            # An idle engine waits for the rest of a wave: requests read together cost little more than one.
            pause = self._options.wave_s if self._waiting and not busy and not self._training else 0.0
            try:
                self._put_in_place(self._inbox.get(timeout=pause) if pause else self._inbox.get_nowait())
            except queue.Empty:
                return
            if self._waiting and time.monotonic() - self._waiting[0].arrived > 4 * self._options.wave_s:
                busy = True

    def _put_in_place(self, item: _Sample | _Training | None) -> None:
        match item:
            case None:
                self._ending = True
            case _Sample():
                self._waiting.append(item)
            case _Training():
                self._training.append(item)

    def _train_part(self) -> None:
        training = self._training[0]
        try:
            next(training.work)
        except StopIteration as end:
            self._training.popleft()
            training.done(end.value)
        except Exception as exc:  # noqa: BLE001 - the boundary of a request: its client is told, the engine goes on
            self._training.popleft()
            training.done(exc)

    def _sample_step(self) -> None:
        if self._admits():
            self._admit()
        for owner, batch in list(self._batches.items()):
            if len(batch):
                try:
                    for job in batch.cancel():
                        self._under_way.pop(id(job), None)
                    if len(batch):
                        self._report(batch.step())
                except Exception as exc:  # noqa: BLE001 - as above; the batch's requests fail, others go on
                    self._fail(owner, exc)

    def _admits(self) -> bool:
        """Whether to read waiting prompts now: a pass for one row costs almost what a pass for many does."""
        if not self._waiting:
            return False
        rows = sum(len(batch) for batch in self._batches.values())
        late = time.monotonic() - self._waiting[0].arrived > 2 * self._options.wave_s
        return late or len(self._waiting) * 4 >= rows

    def _admit(self) -> None:
        admitted: dict[str, list[_Sample]] = {}
        kept: deque[_Sample] = deque()
        rows = sum(len(batch) for batch in self._batches.values())
        for sample in self._waiting:
            job = sample.job
            if job.cancelled:
                continue
            if rows and (rows + job.samples) * self._row_bytes(job) > self._options.row_cache_bytes:
                kept.append(sample)
                continue
            rows += job.samples
            admitted.setdefault(sample.source.owner, []).append(sample)
        self._waiting = kept
        for owner, samples in admitted.items():
            for sample in samples:
                self._under_way[id(sample.job)] = sample
            try:
                batch = self._batch(samples[0].source)
                self._report(batch.admit([sample.job for sample in samples]))
            except Exception as exc:  # noqa: BLE001 - as above
                self._fail(owner, exc)

    def _row_bytes(self, job: SampleJob) -> int:
        architecture = self._architecture
        per_token = architecture.layers * 2 * architecture.kv_heads * architecture.head_dim * 4
        return per_token * (len(job.prompt) + job.max_tokens)

    def _batch(self, source: SamplerSource) -> RunningBatch:
        batch = self._batches.get(source.owner)
        if batch is None:
            weights = source.load()
            batch = RunningBatch(
                self._architecture, self._rope, source.owner, weights, self._prefixes, self._token_bytes
            )
            for idle in self._batches.values():
                idle.shrink()
            self._batches[source.owner] = batch
        self._batches.move_to_end(source.owner)
        for owner in [owner for owner, idle in self._batches.items() if not len(idle)][:-IDLE_BATCHES]:
            self._drop(owner)
        return batch

    def _drop(self, owner: str) -> None:
        self._batches.pop(owner, None)
        self._prefixes.drop(owner)

    def _report(self, jobs: list[SampleJob]) -> None:
        for job in jobs:
            self._under_way.pop(id(job)).done(job)

    def _fail(self, owner: str, exc: Exception) -> None:
        self._drop(owner)
        for key, sample in list(self._under_way.items()):
            if sample.source.owner == owner:
                del self._under_way[key]
                sample.done(exc)
