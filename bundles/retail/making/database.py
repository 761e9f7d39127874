"""The shop's database: products with variants, customers, orders. The same one every time, on every machine.

Chance is made of whole numbers only, and money is counted in hundredths until it is written.
"""

from __future__ import annotations

from itertools import product
from random import Random
from typing import Any

from making.catalogue import PRODUCTS, Kind
from making.people import BRANDS, CITIES, COUNTRY, FIRST_NAMES, LAST_NAMES, STREETS, UNITS

__all__ = ["Record", "make_address", "make_database"]

Record = dict[str, Any]

USERS = 500
ORDERS = 1000
STATUSES = (
    *["pending"] * 42,
    *["pending (item modified)"] * 3,
    *["processed"] * 10,
    *["delivered"] * 38,
    *["cancelled"] * 7,
)
"""An order's status is one of these, drawn evenly."""


def make_database() -> Record:
    """Return the whole database."""
    ids = _Ids(Random("retail ids"))
    products = {entry["product_id"]: entry for entry in (_product(kind, ids) for kind in PRODUCTS)}
    random = Random("retail users")
    users = {user["user_id"]: user for user in (_user(number, random, ids) for number in range(USERS))}
    random = Random("retail orders")
    people = list(users.values())
    orders: dict[str, Record] = {}
    for _ in range(ORDERS):
        # The lower of two draws: some customers come back often, and some have not ordered yet.
        user = people[min(random.randrange(USERS), random.randrange(USERS))]
        order = _order(user, list(products.values()), random, ids)
        orders[order["order_id"]] = order
        user["orders"].append(order["order_id"])
    return {"products": products, "users": users, "orders": orders}


def make_address(random: Random) -> Record:
    """Return an address somewhere in the country."""
    city, state, zip_start = random.choice(CITIES)
    unit = f"{random.choice(UNITS)} {random.randrange(1, 40)}" if random.randrange(3) else ""
    return {
        "address1": f"{random.randrange(1, 240)} {random.choice(STREETS)}",
        "address2": unit,
        "city": city,
        "country": COUNTRY,
        "state": state,
        "zip": f"{zip_start}{random.randrange(100):02d}",
    }


class _Ids:
    """Numbers that are given out once each."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._taken: set[int] = set()

    def number(self, digits: int) -> str:
        while True:
            number = self._random.randrange(10 ** (digits - 1), 10**digits)
            if number not in self._taken:
                self._taken.add(number)
                return str(number)


def _money(cents: int) -> float:
    return cents / 100


def _cents(money: float) -> int:
    return round(money * 100)


def _product(kind: Kind, ids: _Ids) -> Record:
    random = Random(f"retail product {kind.name}")
    choices = [list(enumerate(values)) for values in kind.options.values()]
    designs = list(product(*choices))
    chosen = sorted(random.sample(designs, min(len(designs), random.randrange(7, 14))))
    variants: dict[str, Record] = {}
    for design in chosen:
        dearness = 100 + sum(12 * rank for rank, _ in design) + random.randrange(-3, 4)
        item_id = ids.number(10)
        variants[item_id] = {
            "item_id": item_id,
            "options": {name: value for name, (_, value) in zip(kind.options, design, strict=True)},
            "available": random.randrange(100) < 78,
            "price": _money(kind.price * dearness + random.randrange(100)),
        }
    return {"name": kind.name, "product_id": ids.number(10), "variants": variants}


def _user(number: int, random: Random, ids: _Ids) -> Record:
    first, last = random.choice(FIRST_NAMES), random.choice(LAST_NAMES)
    handle = f"{first.lower()}_{last.lower()}_{1000 + number * 17 % 9000}"
    methods = [_payment_method(source, random, ids) for source in _sources(random)]
    return {
        "user_id": handle,
        "name": {"first_name": first, "last_name": last},
        "address": make_address(random),
        "email": f"{first.lower()}.{last.lower()}{random.randrange(10, 100)}{number:03d}@post.example",
        "payment_methods": {method["id"]: method for method in methods},
        "orders": [],
    }


def _sources(random: Random) -> list[str]:
    """Return which payment methods a customer has: at most two credit cards, one wallet, one gift card."""
    sources = ["credit_card"] if random.randrange(100) < 70 else ["wallet"]
    if random.randrange(100) < 60:
        sources.append("gift_card")
    if random.randrange(100) < 35:
        sources.append("wallet" if "wallet" not in sources else "credit_card")
    if random.randrange(100) < 25:
        sources.append("credit_card")
    return sources


def _payment_method(source: str, random: Random, ids: _Ids) -> Record:
    method: Record = {"source": source, "id": f"{source}_{ids.number(7)}"}
    if source == "gift_card":
        most = 12_000 if random.randrange(3) else 90_000
        method["balance"] = _money(random.randrange(500, most))
    elif source == "credit_card":
        method |= {"brand": random.choice(BRANDS), "last_four": f"{random.randrange(10000):04d}"}
    return method


def _order(user: Record, products: list[Record], random: Random, ids: _Ids) -> Record:
    status = random.choice(STATUSES)
    items = [_item(kind, random) for kind in random.sample(products, random.randrange(1, 6))]
    if random.randrange(20) == 0:
        items.append({**items[0], "options": dict(items[0]["options"])})
    total = sum(_cents(item["price"]) for item in items)
    paid_by = random.choice(list(user["payment_methods"]))
    order: Record = {
        "order_id": f"#W{ids.number(7)}",
        "user_id": user["user_id"],
        "address": dict(user["address"]) if random.randrange(4) else make_address(random),
        "items": items,
        "status": status,
        "fulfillments": [],
        "payment_history": [_entry("payment", total, paid_by)],
    }
    if status in ("processed", "delivered"):
        parcel = {"tracking_id": [ids.number(12)], "item_ids": [item["item_id"] for item in items]}
        order["fulfillments"].append(parcel)
    elif status == "cancelled":
        order["payment_history"].append(_entry("refund", total, paid_by))
        order["cancel_reason"] = random.choice(["no longer needed", "ordered by mistake"])
    elif status == "pending (item modified)":
        _modified_before(order, products, random)
    return order


def _item(kind: Record, random: Random) -> Record:
    variant = random.choice(list(kind["variants"].values()))
    return {
        "name": kind["name"],
        "product_id": kind["product_id"],
        "item_id": variant["item_id"],
        "price": variant["price"],
        "options": dict(variant["options"]),
    }


def _modified_before(order: Record, products: list[Record], random: Random) -> None:
    """Write an order's payments as they are after its first item was replaced."""
    item, first = order["items"][0], order["payment_history"][0]
    kind = next(kind for kind in products if kind["product_id"] == item["product_id"])
    others = [variant for item_id, variant in kind["variants"].items() if item_id != item["item_id"]]
    difference = _cents(item["price"]) - _cents(random.choice(others)["price"])
    first["amount"] = _money(_cents(first["amount"]) - difference)
    order["payment_history"].append(
        _entry("payment" if difference > 0 else "refund", abs(difference), first["payment_method_id"])
    )


def _entry(kind: str, cents: int, method_id: str) -> Record:
    return {"transaction_type": kind, "amount": _money(cents), "payment_method_id": method_id}
