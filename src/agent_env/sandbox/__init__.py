"""Sandboxes: isolated machines that an agent's `bash` tool, `run` steps and command verifiers work in.

What a sandbox is stands in `contract.py`.
"""

from agent_env.errors import SandboxLostError, SandboxUnavailableError
from agent_env.sandbox.adapted import open_adapted
from agent_env.sandbox.contract import MAX_FILE_BYTES, ExecResult, HasVerifierSide, PlacedFile, Sandbox, VerifierSide
from agent_env.sandbox.interface import SandboxInterface
from agent_env.sandbox.opening import check_sandbox, open_sandbox, sweep_sandboxes
from agent_env.sandbox.verifier_side import open_verifier_side

__all__ = [
    "MAX_FILE_BYTES",
    "ExecResult",
    "HasVerifierSide",
    "PlacedFile",
    "Sandbox",
    "SandboxInterface",
    "SandboxLostError",
    "SandboxUnavailableError",
    "VerifierSide",
    "check_sandbox",
    "open_adapted",
    "open_sandbox",
    "open_verifier_side",
    "sweep_sandboxes",
]
