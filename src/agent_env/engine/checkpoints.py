"""Checkpoints in the engine's state directory, and the `tinker://` names by which clients know them.

    runs/<run id>/run.json                                what the run trains
    runs/<run id>/<weights|sampler_weights>/<name>/       weights.safetensors, optimizer.safetensors, checkpoint.json

A checkpoint is written beside its place and renamed into it, so one that is there is whole.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any
from uuid import uuid4

from safetensors.torch import load_file, save_file
from torch import Tensor

from agent_env.errors import EngineError

__all__ = ["Checkpoint", "CheckpointKind", "CheckpointStore", "CheckpointUri", "RunRecord"]

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,199}")


class CheckpointKind(StrEnum):
    """The part of a checkpoint's name that says what it is for."""

    TRAINING = "weights"
    """Weights and the optimizer's state: training goes on from it."""
    SAMPLER = "sampler_weights"
    """Weights alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointUri:
    """`tinker://<run>/<weights|sampler_weights>/<name>`."""

    run_id: str
    kind: CheckpointKind
    name: str

    @classmethod
    def parse(cls, text: str) -> CheckpointUri:
        """Read the text form.

        Raises:
            EngineError: When it is not one.
        """
        parts = text.removeprefix("tinker://").split("/")
        kinds = [kind.value for kind in CheckpointKind]
        good = text.startswith("tinker://") and len(parts) == 3 and parts[1] in kinds
        if not good or not RUN_ID.fullmatch(parts[0]) or not NAME.fullmatch(parts[2]):
            raise EngineError(f"{text!r} is no checkpoint: write tinker://<run>/<{'|'.join(kinds)}>/<name>")
        return cls(run_id=parts[0], kind=CheckpointKind(parts[1]), name=parts[2])

    def __str__(self) -> str:
        return f"tinker://{self.run_id}/{self.kind}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """What is known of a training run without its weights."""

    run_id: str
    base_model: str
    training: str
    """`lora` or `full`."""
    lora: Mapping[str, Any]
    """The fields of `LoraSettings`."""
    user_metadata: Mapping[str, str]
    started: float
    """Unix time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One checkpoint that is there."""

    uri: CheckpointUri
    time: float
    """When it was saved, Unix time."""
    size_bytes: int
    user_metadata: Mapping[str, str]
    expires: float | None
    """Unix time; None never."""


class CheckpointStore:
    """The checkpoints under one state directory. Not for two engines at a time: `serve` holds its lock."""

    def __init__(self, state_dir: Path) -> None:
        self._runs = state_dir / "runs"
        self._runs.mkdir(parents=True, exist_ok=True)
        # What a process that was killed left: a replacement that is whole goes to its place, the rest goes.
        for ready in self._runs.glob(f"*/*/{READY}*"):
            self._replace(ready.with_name(ready.name.removeprefix(READY)), ready)
        for scratch in self._runs.glob(f"*/*/{PARTIAL}*"):
            shutil.rmtree(scratch, ignore_errors=True)

    def add_run(self, run: RunRecord) -> None:
        """Note a new run."""
        folder = self._runs / run.run_id
        folder.mkdir(parents=True, exist_ok=True)
        _write_json(folder / "run.json", asdict(run))

    def run(self, run_id: str) -> RunRecord | None:
        """What is known of a run, or None where there is no such run."""
        path = self._runs / run_id / "run.json"
        if not RUN_ID.fullmatch(run_id) or not path.exists():
            return None
        return RunRecord(**json.loads(path.read_text(encoding="utf-8")))

    def runs(self) -> list[RunRecord]:
        """Every run, the newest first."""
        found = [self.run(path.parent.name) for path in self._runs.glob("*/run.json")]
        return sorted((run for run in found if run is not None), key=lambda run: -run.started)

    def save(
        self,
        uri: CheckpointUri,
        weights: Mapping[str, Tensor],
        optimizer: Mapping[str, Tensor] | None,
        *,
        user_metadata: Mapping[str, str],
        ttl_s: int | None,
        overwrite: bool,
    ) -> None:
        """Write a checkpoint, whole or not at all.

        Raises:
            EngineError: When one of that name is there and `overwrite` is false.
        """
        folder = self._folder(uri)
        if folder.exists() and not overwrite:
            raise EngineError(f"{uri} is there already; save under another name, or with overwrite=True")
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = folder.parent / f"{PARTIAL}{uuid4().hex}"
        scratch.mkdir()
        try:
            save_file({name: tensor.detach().contiguous() for name, tensor in weights.items()}, scratch / WEIGHTS)
            if optimizer is not None:
                save_file(
                    {name: tensor.detach().contiguous() for name, tensor in optimizer.items()}, scratch / OPTIMIZER
                )
            now = time.time()
            _write_json(
                scratch / "checkpoint.json",
                {
                    "time": now,
                    "user_metadata": dict(user_metadata),
                    "expires": None if ttl_s is None else now + ttl_s,
                },
            )
            for file in scratch.iterdir():
                _sync(file)
            if folder.exists():
                ready = folder.with_name(f"{READY}{folder.name}")
                scratch.rename(ready)
                self._replace(folder, ready)
            else:
                scratch.rename(folder)
            _sync(folder.parent)
        except BaseException:  # whatever it is: all of it, or nothing
            shutil.rmtree(scratch, ignore_errors=True)
            raise

    @staticmethod
    def _replace(folder: Path, ready: Path) -> None:
        """Put a whole checkpoint in the place of another; a kill in between is made good at the next start."""
        if folder.exists():
            old = folder.with_name(f"{PARTIAL}{uuid4().hex}")
            folder.rename(old)
            ready.rename(folder)
            shutil.rmtree(old)
        else:
            ready.rename(folder)

    def load(self, uri: CheckpointUri) -> tuple[dict[str, Tensor], dict[str, Tensor] | None]:
        """The weights, and the optimizer's state where the checkpoint has it.

        Raises:
            EngineError: When there is no such checkpoint.
        """
        folder = self._existing(uri)
        optimizer = folder / OPTIMIZER
        return load_file(folder / WEIGHTS), load_file(optimizer) if optimizer.exists() else None

    def saved_at(self, uri: CheckpointUri) -> float:
        """When a checkpoint was saved, Unix time.

        Raises:
            EngineError: When there is no such checkpoint.
        """
        noted: Any = json.loads((self._existing(uri) / "checkpoint.json").read_text(encoding="utf-8"))
        return float(noted["time"])

    def delete(self, uri: CheckpointUri) -> None:
        """Remove a checkpoint.

        Raises:
            EngineError: When there is no such checkpoint.
        """
        folder = self._existing(uri)
        # Renamed first: a half-removed checkpoint must not look like one.
        scratch = folder.parent / f"{PARTIAL}{uuid4().hex}"
        folder.rename(scratch)
        shutil.rmtree(scratch)

    def checkpoints(self, run_id: str | None = None) -> list[Checkpoint]:
        """The checkpoints of a run, or of every run; the newest first."""
        return sorted(self._checkpoints(run_id), key=lambda checkpoint: -checkpoint.time)

    def _checkpoints(self, run_id: str | None) -> Iterator[Checkpoint]:
        runs = self._runs.iterdir() if run_id is None else [self._runs / run_id]
        for run in runs:
            for kind in CheckpointKind:
                for path in (run / kind).glob("*/checkpoint.json"):
                    noted: Any = json.loads(path.read_text(encoding="utf-8"))
                    yield Checkpoint(
                        uri=CheckpointUri(run_id=run.name, kind=kind, name=path.parent.name),
                        time=noted["time"],
                        size_bytes=sum(file.stat().st_size for file in path.parent.iterdir()),
                        user_metadata=noted["user_metadata"],
                        expires=noted["expires"],
                    )

    def delete_expired(self) -> None:
        """Remove the checkpoints whose time to live is over."""
        for checkpoint in self.checkpoints():
            if checkpoint.expires is not None and checkpoint.expires < time.time():
                self.delete(checkpoint.uri)

    def _folder(self, uri: CheckpointUri) -> Path:
        return self._runs / uri.run_id / uri.kind / uri.name

    def _existing(self, uri: CheckpointUri) -> Path:
        folder = self._folder(uri)
        if not (folder / "checkpoint.json").exists():
            raise EngineError(f"{uri}: this engine has no such checkpoint (deleted, or in another state directory)")
        return folder


PARTIAL, READY = ".partial-", ".ready-"
WEIGHTS = "weights.safetensors"
OPTIMIZER = "optimizer.safetensors"


def _write_json(path: Path, document: Mapping[str, Any]) -> None:
    scratch = path.with_name(f"{PARTIAL}{path.name}")
    scratch.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    scratch.replace(path)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
