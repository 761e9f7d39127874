"""Sandboxes: isolated machines that an agent's `bash` tool, `run` steps and command verifiers work in.

What a sandbox is stands in `contract.py`.
"""

from agent_env.errors import SandboxLostError, SandboxUnavailableError
from agent_env.sandbox.contract import MAX_FILE_BYTES, ExecResult, Sandbox

__all__ = ["MAX_FILE_BYTES", "ExecResult", "Sandbox", "SandboxLostError", "SandboxUnavailableError"]
