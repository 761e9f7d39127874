# ruff: noqa: ASYNC109, D102, FBT001, FBT002 - the shape is the cookbook's
"""The shape of a sandbox in tinker-cookbook, so that what fits it can be used here without the cookbook."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

__all__ = ["Result", "SandboxInterface"]


class Result(Protocol):
    """The shape of its `SandboxResult`."""

    @property
    def stdout(self) -> str: ...
    @property
    def stderr(self) -> str: ...
    @property
    def exit_code(self) -> int: ...


@runtime_checkable
class SandboxInterface(Protocol):
    """The shape of tinker-cookbook's protocol of this name."""

    @property
    def sandbox_id(self) -> str: ...

    async def send_heartbeat(self, timeout: int = 30) -> None: ...

    async def run_command(
        self, command: str, workdir: str | None = None, timeout: int = 60, max_output_bytes: int | None = None
    ) -> Result: ...

    async def read_file(self, path: str, max_bytes: int | None = None, timeout: int = 60) -> Result: ...

    async def write_file(
        self, path: str, content: str | bytes, executable: bool = False, timeout: int = 60
    ) -> Result: ...

    async def cleanup(self) -> None: ...
