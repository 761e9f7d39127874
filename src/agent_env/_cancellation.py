"""Telling a cancellation that somebody asked for from one that a bundle's code raises itself."""

from __future__ import annotations

import asyncio

__all__ = ["raise_if_ours"]


def raise_if_ours(exc: asyncio.CancelledError) -> None:
    """Raise a cancellation that somebody asked for; a bundle's code may raise one of its own."""
    task = asyncio.current_task()
    if task is None or task.cancelling():
        raise exc
