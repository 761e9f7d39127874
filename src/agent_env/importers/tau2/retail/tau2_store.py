"""The store with tau2-bench's own arithmetic, so that a score here is a score there.

Its reference effects differ from what one would expect of a shop in two ways, both in replacing items of a pending order:
every replaced item gets the price and the options of the variant that was named last, and what is paid or given back is
not rounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .store import Store, Swap


class Tau2Store(Store):
    """A shop's products, customers and orders, changed just as tau2-bench changes them."""

    def _amount(self, difference: float) -> float:
        return difference

    def _replace(self, order: dict[str, Any], swaps: Sequence[Swap]) -> None:
        _, last = swaps[-1]
        for item, variant in swaps:
            item["item_id"] = variant["item_id"]
            item["price"] = last["price"]
            item["options"] = dict(last["options"])
