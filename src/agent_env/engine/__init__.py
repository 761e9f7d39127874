"""The embedded engine: a Tinker-protocol server on this machine, over a small transformer on its processors.

The real `tinker` SDK and tinker-cookbook are its clients, unchanged. It is a door in, not a rival: the same job runs on
Tinker, or on any server that speaks the protocol, by its `base_url`. Importing this imports no torch.
"""

from agent_env.engine.build import build_model
from agent_env.engine.options import EngineOptions, Training
from agent_env.engine.process import EngineHandle, serve, start_engine
from agent_env.engine.shape import ModelShape, Pretokenizer

__all__ = [
    "EngineHandle",
    "EngineOptions",
    "ModelShape",
    "Pretokenizer",
    "Training",
    "build_model",
    "serve",
    "start_engine",
]
