"""The pair of streams that a session of the SDK's runs on, as far as all transports have it in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

import anyio
from mcp.shared.message import SessionMessage

__all__ = ["Reading", "Streams", "Writing"]


class _Closing:
    async def aclose(self) -> None:
        """Close the stream; nothing, where that is not for the session to do."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        await self.aclose()


class Reading(_Closing, ABC):
    """Messages from a server."""

    @abstractmethod
    async def receive(self) -> SessionMessage | Exception:
        """Return the next message.

        Raises:
            anyio.EndOfStream: When none comes any more.
        """

    def __aiter__(self) -> Reading:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None


class Writing(_Closing, ABC):
    """Messages to a server."""

    @abstractmethod
    async def send(self, item: SessionMessage, /) -> None:
        """Send a message.

        Raises:
            anyio.BrokenResourceError: When nobody is there to read it.
        """


Streams = tuple[Reading, Writing]
