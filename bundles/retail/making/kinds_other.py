"""Kinds of tasks in which nothing changes, or that are not the desk's to do: questions, hand-overs, other people's orders."""

from __future__ import annotations

from collections.abc import Iterator

from making.case import Case, figure
from making.database import Record, make_address
from making.words import place, thing

__all__ = [
    "ask_balance",
    "ask_cheapest",
    "ask_item",
    "ask_total",
    "ask_tracking",
    "hand_over_damage",
    "hand_over_undo",
    "hand_over_wanted",
    "someone_elses_order",
    "someone_elses_profile",
]


def ask_tracking(case: Case) -> None:
    """Where a parcel is."""
    order = case.pick(case.with_status("processed", "delivered"))
    item = case.random.choice(order["items"])
    case.only_in(item)
    tracking = order["fulfillments"][0]["tracking_id"][0]
    case.ask(f"What is the tracking number of the parcel with my {thing(item)}?")
    case.look_at(*case.orders)
    case.answer(f"It is {tracking}.", tracking)


def ask_balance(case: Case) -> None:
    """What a gift card holds."""
    card = case.pick(case.methods("gift_card"))
    case.ask("How much is on my gift card? In figures, please.")
    case.answer(f"It holds {card['balance']:.2f}.", figure(card["balance"]))


def ask_total(case: Case) -> None:
    """What all delivered orders cost together."""
    orders = case.with_status("delivered")
    case.need(2 <= len(orders) <= 4)
    total = round(sum(order["payment_history"][0]["amount"] for order in orders), 2)
    case.ask("For my records: what did all my delivered orders cost together, to the cent, in figures?")
    case.look_at(*case.orders)
    case.call("calculate", expression=" + ".join(str(order["payment_history"][0]["amount"]) for order in orders))
    case.answer(f"Together they cost {total:.2f}.", figure(total))


def ask_cheapest(case: Case) -> None:
    """What the shop has, and for how much."""
    kind = case.random.choice(list(case.database["products"].values()))
    stock = sorted(
        (variant for variant in kind["variants"].values() if variant["available"]), key=lambda variant: variant["price"]
    )
    case.need(len(stock) > 1 and stock[0]["price"] < stock[1]["price"])
    cheapest = stock[0]
    case.ask(
        f"I am interested in the product '{kind['name']}'. Which variant that is available is the cheapest? "
        "Give me its item number and its price in figures."
    )
    case.call("list_all_product_types")
    case.call("get_product_details", product_id=kind["product_id"])
    case.answer(
        f"The cheapest is item {cheapest['item_id']}, for {cheapest['price']:.2f}.",
        cheapest["item_id"],
        figure(cheapest["price"]),
    )


def ask_item(case: Case) -> None:
    """What an item of a given number costs."""
    kind = case.random.choice(list(case.database["products"].values()))
    variant = case.random.choice(list(kind["variants"].values()))
    case.ask(f"I wrote down the item number {variant['item_id']}. What does it cost, in figures, and is it available?")
    case.call("get_item_details", item_id=variant["item_id"])
    there = "available" if variant["available"] else "not available"
    case.answer(f"It costs {variant['price']:.2f} and is {there}.", figure(variant["price"]))


def _hand_over(case: Case, summary: str) -> None:
    case.call("transfer_to_human_agents", summary=summary)
    case.must_call.append("transfer_to_human_agents")
    case.answer("I am handing you over to a colleague.")


def hand_over_wanted(case: Case) -> None:
    """The customer wants a person."""
    order = case.pick(case.orders)
    case.ask(
        f"It is about {order['order_id']}, and I will only discuss it with a person. Connect me with one of your staff."
    )
    _hand_over(case, f"The customer wants to talk about order {order['order_id']} with a person.")


def hand_over_undo(case: Case) -> None:
    """A cancellation cannot be undone at the desk."""
    order = case.pick(case.with_status("cancelled"))
    case.ask(f"My order {order['order_id']} was cancelled, and I want it to be revived just as it was.")
    case.look_at(order)
    _hand_over(case, f"The customer wants the cancelled order {order['order_id']} to be revived.")


def hand_over_damage(case: Case) -> None:
    """Damage claims are for colleagues."""
    order = case.plain(case.pick(case.with_status("delivered")))
    item = case.random.choice(order["items"])
    case.ask(
        f"The {thing(item)} in {order['order_id']} arrived with a crack. I want to keep it and get part of its price back "
        "for the damage."
    )
    case.look_at(order)
    _hand_over(
        case, f"The {thing(item)} of order {order['order_id']} arrived damaged; the customer wants compensation."
    )


def someone_elses_order(case: Case) -> None:
    """Other people's orders are not touched; the customer's own are."""
    order, address = case.pick(case.with_status("pending")), make_address(case.random)
    theirs = case.pick([other for other in _others(case) if other["status"] == "pending"])
    name = case.database["users"][theirs["user_id"]]["name"]
    case.ask(
        f"My friend {name['first_name']} {name['last_name']} asked me to have {theirs['order_id']} cancelled, "
        "which is no longer needed. You can do that for us, can't you?"
    )
    case.answer("Only they can ask for that, so nothing is done with that order.")
    case.ask(f"And for myself: send my order {order['order_id']} to {place(address)}.")
    case.look_at(order)
    case.call("modify_pending_order_address", order_id=order["order_id"], **address)
    case.answer("Yours goes to the new address.")


def someone_elses_profile(case: Case) -> None:
    """Other people's profiles are not touched, and neither is what was bought for them."""
    theirs, address = case.pick(list(_others(case))), case.user["address"]
    user = case.database["users"][theirs["user_id"]]
    card = case.pick(case.methods("gift_card"))
    case.ask(
        f"My sister {user['name']['first_name']} {user['name']['last_name']} ({user['email']}) has moved in with me. Put this "
        f"address into her profile: {place(address)}. Mine has it already, leave mine alone."
    )
    case.answer("Only she can ask for that, so her profile stays as it is.")
    case.ask("And how much is on my own gift card? In figures, please.")
    case.answer(f"There is {figure(card['balance'])} on yours.", figure(card["balance"]))


def _others(case: Case) -> Iterator[Record]:
    """Yield the orders of everybody else."""
    for order in case.database["orders"].values():
        if order["user_id"] != case.user["user_id"]:
            yield order
