"""A customer with something to ask: what a kind of task is written with, step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

from making.database import Record

__all__ = ["Ask", "Case", "Topic", "Unfit", "figure"]

T = TypeVar("T")

Topic = str
"""What a detail is about: `payment`, `reason`, `address`, `choice`, or `refused` for what to do instead."""


class Unfit(Exception):
    """This customer cannot be the one of this kind of task."""


@dataclass(slots=True)
class Ask:
    """One thing that a customer wants."""

    text: str
    details: list[tuple[Topic, str]] = field(default_factory=list[tuple[Topic, str]])
    """What else is to be known, by what it is about. In a conversation the customer says it when asked."""
    calls: list[Record] = field(default_factory=list[Record])
    """What a good clerk calls for it."""
    answer: str = "It is done."
    """What a good clerk says then."""


class Case:
    """One customer of the shop, and the task that is being made of them."""

    def __init__(self, database: Record, user: Record, random: Random) -> None:
        self.database = database
        self.user = user
        self.random = random
        self.asks: list[Ask] = []
        self.said: list[str] = []
        """Texts that the clerk's answer must hold."""
        self.must_call: list[str] = []
        """Tools that must be called although they change nothing."""
        self._seen: set[str] = set()

    # What the customer has.

    @property
    def orders(self) -> list[Record]:
        """All orders of the customer."""
        return [self.database["orders"][order_id] for order_id in self.user["orders"]]

    def with_status(self, *statuses: str) -> list[Record]:
        """Return the customer's orders with one of these statuses."""
        return [order for order in self.orders if order["status"] in statuses]

    def pick(self, choices: Sequence[T]) -> T:
        """Return one of `choices`.

        Raises:
            Unfit: When there is none.
        """
        self.need(choices)
        return self.random.choice(choices)

    def need(self, condition: object) -> None:
        """Go on only where `condition` holds.

        Raises:
            Unfit: When it does not.
        """
        if not condition:
            raise Unfit

    def methods(self, source: str | None = None, *, but: str | None = None) -> list[Record]:
        """Return the customer's payment methods, those of one kind, without one of them."""
        return [
            method
            for method in self.user["payment_methods"].values()
            if source in (None, method["source"]) and method["id"] != but
        ]

    def plain_methods(self, *, but: str | None = None) -> list[Record]:
        """Return the payment methods that are no gift cards."""
        return [method for method in self.methods(but=but) if method["source"] != "gift_card"]

    def paid_by(self, order: Record) -> str:
        """Return the id of the method that paid an order first."""
        return order["payment_history"][0]["payment_method_id"]

    def named(self, method_id: str) -> str:
        """Return how the customer speaks of one of their payment methods, so that no other can be meant."""
        method = self.user["payment_methods"][method_id]
        kind = {"gift_card": "gift card", "credit_card": "credit card", "wallet": "wallet"}[method["source"]]
        alike = self.methods(method["source"])
        if len(alike) == 1:
            return f"my {kind}"
        self.need(len({other["last_four"] for other in alike}) == len(alike))
        return f"my {method['brand']} card ending in {method['last_four']}"

    def plain(self, order: Record) -> Record:
        """Return an order in which no item is there twice.

        Raises:
            Unfit: When one is.
        """
        self.need(len({item["item_id"] for item in order["items"]}) == len(order["items"]))
        return order

    def only_in(self, item: Record) -> None:
        """Go on only where the customer has this product in one order, so that its name says which order is meant."""
        holding = [order for order in self.orders if any(each["name"] == item["name"] for each in order["items"])]
        self.need(len(holding) == 1)

    # What the shop has.

    def product(self, item: Record) -> Record:
        """Return the product that an item is a variant of."""
        return self.database["products"][item["product_id"]]

    def variants(self, item: Record, *, available: bool = True, near: bool = True) -> list[Record]:
        """Return other variants of an item's product: available or not, with one option changed or with any."""
        found: list[Record] = []
        for variant in self.product(item)["variants"].values():
            changed = len(changes(item["options"], variant["options"]))
            if variant["available"] == available and changed and (changed == 1 or not near):
                found.append(variant)
        return found

    def swaps(self, order: Record, *, near: bool = True) -> list[tuple[Record, Record]]:
        """Return two or three items of an order, each with a variant to have in its place.

        Raises:
            Unfit: When there are not as many.
        """
        found = [
            (item, self.random.choice(variants))
            for item in order["items"]
            if (variants := self.variants(item, near=near))
        ]
        self.need(len(found) >= 2)
        return found[:3]

    def too_dear(self, order: Record, card: Record) -> tuple[Record, Record]:
        """Return an item of an order, and a variant of it whose difference in price a gift card does not cover.

        Raises:
            Unfit: When there is none.
        """
        return self.pick(
            [
                (item, variant)
                for item in order["items"]
                for variant in self.variants(item, near=False)
                if variant["price"] - item["price"] > card["balance"]
            ]
        )

    # What is written down.

    def ask(self, text: str) -> None:
        """Let the customer want one thing more."""
        self.asks.append(Ask(text))

    def detail(self, topic: Topic, text: str) -> None:
        """Let the customer know something about it."""
        self.asks[-1].details.append((topic, text))

    def call(self, tool: str, **arguments: Any) -> None:
        """Let the clerk call a tool for it."""
        self.asks[-1].calls.append({"tool": tool, "arguments": arguments})

    def look_at(self, *orders: Record) -> None:
        """Let the clerk look at orders, each once in a task."""
        for order in orders:
            if order["order_id"] not in self._seen:
                self._seen.add(order["order_id"])
                self.call("get_order_details", order_id=order["order_id"])

    def look_up(self, item: Record) -> None:
        """Let the clerk look at the variants of an item's product."""
        self.call("get_product_details", product_id=item["product_id"])

    def swap(self, tool: str, order: Record, swaps: Sequence[tuple[Record, Record]], method_id: str) -> float:
        """Let the clerk put variants in the place of items, with one of two tools; return what they cost more."""
        self.look_at(order)
        for item, _ in swaps:
            self.look_up(item)
        self.call(
            tool,
            order_id=order["order_id"],
            item_ids=[item["item_id"] for item, _ in swaps],
            new_item_ids=[variant["item_id"] for _, variant in swaps],
            payment_method_id=method_id,
        )
        return round(sum(variant["price"] - item["price"] for item, variant in swaps), 2)

    def answer(self, text: str, *said: str) -> None:
        """Let the clerk answer; `said` is what the answer must hold, whatever else is in it."""
        self.asks[-1].answer = text
        self.said.extend(said)


def changes(options: Mapping[str, str], others: Mapping[str, str]) -> dict[str, str]:
    """Return the options in which two variants differ, as the second one has them."""
    return {name: value for name, value in others.items() if options[name] != value}


def figure(amount: float) -> str:
    """Return an amount as a clerk writes it."""
    return f"{amount:.2f}"
