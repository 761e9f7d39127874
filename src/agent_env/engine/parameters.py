"""What training changes: LoRA adapters or every weight, kept as one flat vector.

One vector makes the optimizer a handful of operations whatever the number of matrices. The forward pass sees
`base + scale * B @ A`, made once a step: with a model this small that costs less than two more products a token.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from agent_env.engine.architecture import Architecture
from agent_env.engine.model import Weights, assemble
from agent_env.engine.options import Training
from agent_env.errors import EngineError

__all__ = ["LORA_ALPHA", "LoraSettings", "Parameters", "merged_weights"]

LORA_ALPHA = 32
"""Tinker's; adapters are scaled by `LORA_ALPHA / rank`. Not checked against the hosted service."""

ATTENTION = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
MLP = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraSettings:
    """The client's `lora_config`."""

    rank: int
    seed: int | None = None
    """Of the first values; None draws one."""
    train_attn: bool = True
    train_mlp: bool = True
    train_unembed: bool = True

    def __post_init__(self) -> None:
        if not 1 <= self.rank <= 1024:
            raise EngineError(f"lora_config.rank {self.rank}: must be from 1 to 1024")


class Parameters:
    """One training run's changing values, and the weights they make with the base model's."""

    def __init__(
        self,
        architecture: Architecture,
        base: Mapping[str, Tensor],
        training: Training,
        lora: LoraSettings,
    ) -> None:
        self._architecture = architecture
        self._base = base
        self.training = training
        self.lora = lora
        first = dict(base) if training is Training.FULL else _adapters(lora, _targets(architecture, base, lora))
        self._shapes = {name: tensor.shape for name, tensor in first.items()}
        self._sizes = [tensor.numel() for tensor in first.values()]
        self.vector = torch.cat([tensor.reshape(-1) for tensor in first.values()]).clone().requires_grad_()
        """All changing values; its `.grad` is what forward_backward adds up."""

    def named(self, vector: Tensor) -> dict[str, Tensor]:
        """Views of a vector laid out as `self.vector`, by name."""
        parts = vector.split(self._sizes)
        return {name: part.view(shape) for (name, shape), part in zip(self._shapes.items(), parts, strict=True)}

    def flat(self, tensors: Mapping[str, Tensor], source: str) -> Tensor:
        """The vector of named values.

        Raises:
            EngineError: When they are not the values of a run like this one.
        """
        if {name: tensor.shape for name, tensor in tensors.items()} != self._shapes:
            raise EngineError(
                f"{source}: holds other weights than this engine trains (base model, training mode or LoRA settings "
                "differ); start the engine as it was when the checkpoint was saved"
            )
        return torch.cat([tensors[name].reshape(-1) for name in self._shapes])

    def weights(self) -> Weights:
        """The model's weights as they are now. Differentiable with respect to `vector` where gradients are on."""
        return merged_weights(self._architecture, self._base, self.training, self.lora, self.named(self.vector))


def merged_weights(
    architecture: Architecture,
    base: Mapping[str, Tensor],
    training: Training,
    lora: LoraSettings,
    named: Mapping[str, Tensor],
) -> Weights:
    """The model's weights with what a training run changed."""
    if training is Training.FULL:
        return assemble(architecture, named)
    merged = dict(base)
    for name, down in named.items():
        if name.endswith(".lora_A"):
            target = name.removesuffix(".lora_A")
            matrix = base.get(f"{target}.weight", base["embed_tokens.weight"])
            merged[f"{target}.weight"] = torch.addmm(
                matrix, named[f"{target}.lora_B"], down, alpha=LORA_ALPHA / lora.rank
            )
    return assemble(architecture, merged)


def _targets(architecture: Architecture, base: Mapping[str, Tensor], lora: LoraSettings) -> dict[str, torch.Size]:
    """The matrices that get an adapter, with their shapes."""
    parts = [*(ATTENTION if lora.train_attn else ()), *(MLP if lora.train_mlp else ())]
    names = [f"layers.{layer}.{part}" for layer in range(architecture.layers) for part in parts]
    targets = {name: base[f"{name}.weight"].shape for name in names}
    if lora.train_unembed:
        # With a tied embedding the adapter changes the output layer only, which then is no longer tied.
        targets["lm_head"] = base.get("lm_head.weight", base["embed_tokens.weight"]).shape
    if not targets:
        raise EngineError("lora_config: train_attn, train_mlp and train_unembed are all false, nothing would train")
    return targets


def _adapters(lora: LoraSettings, targets: Mapping[str, torch.Size]) -> dict[str, Tensor]:
    """First values: A as `nn.Linear` begins, B zero, so that the adapted model begins as the base model."""
    generator = torch.Generator()
    if lora.seed is None:
        generator.seed()
    else:
        generator.manual_seed(lora.seed % 2**63)
    adapters: dict[str, Tensor] = {}
    for name, (rows, columns) in targets.items():
        bound = 1.0 / math.sqrt(columns)
        adapters[f"{name}.lora_A"] = torch.empty(lora.rank, columns).uniform_(-bound, bound, generator=generator)
        adapters[f"{name}.lora_B"] = torch.zeros(rows, lora.rank)
    return adapters
