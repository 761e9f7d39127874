"""A sandbox of bubblewrap's, and in it a place for verifiers that the agent's processes cannot reach."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from secrets import token_hex

from agent_env._cleanup import wait_until_done
from agent_env.errors import SandboxLostError
from agent_env.sandbox._blocking import in_thread
from agent_env.sandbox._channel import Channel
from agent_env.sandbox._jail import VERIFIERS_DIR
from agent_env.sandbox._supervised import SupervisedSandbox, Workplace
from agent_env.sandbox._verifier_files import AS_AGENT, VerifierFiles
from agent_env.sandbox.contract import PlacedFile, VerifierSide
from agent_env.sandbox.verifier_side import remove_inside, side_of

__all__ = ["JailedSandbox"]

logger = logging.getLogger(__name__)

_CLEAR_S = 30.0
_END_S = 120.0


class JailedSandbox(SupervisedSandbox):
    """The agent's side of a jail, as a `Sandbox` that has a `verifier_side`."""

    def __init__(self, channels: Sequence[Channel], workplace: Workplace, files: VerifierFiles, *, python: str) -> None:
        """Use an open jail.

        Args:
            channels: To the first process of the agent's side, and to that of the verifiers'.
            workplace: Of both.
            files: What the verifiers' side sees.
            python: The Python of the first processes, as they see it.
        """
        agents, verifiers = channels
        super().__init__(agents, workplace)
        self._verifiers = SupervisedSandbox(verifiers, workplace)
        self._files = files
        self._python = python
        self._one_at_a_time = asyncio.Lock()

    @asynccontextmanager
    async def verifier_side(self, files: Sequence[PlacedFile] = ()) -> AsyncGenerator[VerifierSide]:
        """See `HasVerifierSide`."""
        async with self._one_at_a_time:
            name = token_hex(8)
            try:
                await in_thread(partial(self._place, name, files), what="putting a verifier's files into a sandbox")
                yield await self._side(name)
            finally:
                ending = asyncio.create_task(self._end(name), name=f"end verifier {name}")
                await wait_until_done(ending, grace_s=_END_S, what="ending a verifier in a sandbox")

    def _place(self, name: str, files: Sequence[PlacedFile]) -> None:
        self._files.write_as_agent(self._python, VERIFIERS_DIR / "door")
        self._files.write(name, files)

    async def _side(self, name: str) -> VerifierSide:
        placed, own = VERIFIERS_DIR / "files", VERIFIERS_DIR / name
        return await side_of(
            self._verifiers,
            files=placed / name,
            own=own / "out",
            temporary=own / "tmp",
            is_apart=True,
            as_agent=placed / AS_AGENT,
        )

    async def _end(self, name: str) -> None:
        try:
            await self._verifiers.clear(within_s=_CLEAR_S)
        except SandboxLostError:
            pass  # and what ran in it with it
        else:
            await remove_inside(self._verifiers, VERIFIERS_DIR / name)
        await in_thread(partial(self._files.remove, name), what="removing a verifier's files")
