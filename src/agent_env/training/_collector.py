"""Python's garbage collector, kept from stopping the event loop while rollouts are under way.

A full round of it goes through everything that is alive: 100 ms with 500 rollouts, and no thread of Python's runs meanwhile.
By default one comes each time some 70,000 objects more are alive than at the last one, whatever is under way. It finds next to
nothing: what rollouts leave is freed by counting references, but for a few objects in cycles. So full rounds are made between
batches, when nothing waits for them, and seldom otherwise.
"""

from __future__ import annotations

import gc
from functools import cache

__all__ = ["collect", "spare"]

_MIDDLE_ROUNDS = 100
"""Rounds over the younger objects before there is a full one: ten times what Python comes with. Without any, what is in cycles
would stay for ever in a training that always has rollouts under way."""


@cache
def spare() -> None:
    """Take what is there now out of the collector's rounds, and have full ones seldom: once in a process.

    torch and transformers are some 400,000 objects that live as long as the process. Thresholds that the process has set for
    itself stay, where they ask for still fewer full rounds.
    """
    gc.collect()
    gc.freeze()
    young, middle, full = gc.get_threshold()
    if 0 < full < _MIDDLE_ROUNDS:  # 0: this Python's collector makes no full rounds
        gc.set_threshold(young, middle, _MIDDLE_ROUNDS)


def collect() -> None:
    """Make a full round now, unless the process has turned the collector off."""
    if gc.isenabled():
        gc.collect()
