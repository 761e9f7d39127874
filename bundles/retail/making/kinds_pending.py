"""Kinds of tasks about orders that are not on their way yet: cancelling them, and changing where they go, who pays, what is in
them.
"""

from __future__ import annotations

from making.case import Case, figure
from making.database import Record, make_address
from making.words import listed, place, thing, wish

__all__ = [
    "address_move",
    "address_order",
    "address_order_to_own",
    "address_own_from_order",
    "address_too_late",
    "cancel",
    "cancel_by_content",
    "cancel_every_pending",
    "cancel_one_item",
    "cancel_too_late",
    "cancel_wrong_reason",
    "items_after_items",
    "items_cheapest",
    "items_gift_card_low",
    "items_one",
    "items_other_product",
    "items_several",
    "items_unavailable",
    "payment_gift_card",
    "payment_gift_card_low",
    "payment_other",
    "payment_then_items",
]

_REASONS = {
    "no longer needed": "The reason is that it is no longer needed.",
    "ordered by mistake": "The reason is that it was ordered by mistake.",
}


def _cancel(case: Case, *orders: Record) -> None:
    """Let the customer give a reason, and the clerk cancel the orders."""
    reason = case.random.choice(list(_REASONS))
    case.detail("reason", _REASONS[reason])
    case.look_at(*orders)
    for order in orders:
        case.call("cancel_pending_order", order_id=order["order_id"], reason=reason)


def _send_to(case: Case, order: Record, address: Record) -> None:
    case.call("modify_pending_order_address", order_id=order["order_id"], **address)


def _set_own_address(case: Case, address: Record) -> None:
    case.call("modify_user_address", user_id=case.user["user_id"], **address)


def _replace(case: Case, order: Record, swaps: list[tuple[Record, Record]], method_id: str) -> float:
    """Let the clerk replace items; return what the new ones cost more."""
    return case.swap("modify_pending_order_items", order, swaps, method_id)


def _affordable(method: Record, more: float) -> bool:
    return method["source"] != "gift_card" or method["balance"] >= max(more, 0)


def cancel(case: Case) -> None:
    """An order is cancelled, by its id."""
    order = case.pick(case.with_status("pending"))
    amount = order["payment_history"][0]["amount"]
    case.ask(f"Please cancel my order {order['order_id']}, and tell me in figures how much I get back.")
    _cancel(case, order)
    case.answer(f"Order {order['order_id']} is cancelled; {amount:.2f} goes back to you.", figure(amount))


def cancel_by_content(case: Case) -> None:
    """An order is cancelled, and what is in it says which."""
    order = case.pick(case.with_status("pending"))
    item = case.random.choice(order["items"])
    case.only_in(item)
    case.ask(f"I want to cancel the order with the {thing(item)} in it, the whole order. I have no order number here.")
    case.look_at(*case.orders)
    _cancel(case, order)
    case.answer(f"Order {order['order_id']} is cancelled.")


def cancel_every_pending(case: Case) -> None:
    """All orders that can be cancelled are."""
    case.need(not case.with_status("pending (item modified)"))
    orders = case.with_status("pending")
    case.need(2 <= len(orders) <= 3)
    total = round(sum(order["payment_history"][0]["amount"] for order in orders), 2)
    case.ask(
        "Cancel every order of mine that is still pending. In figures, how much do I get back for all of them together?"
    )
    case.look_at(*case.orders)
    _cancel(case, *orders)
    case.call("calculate", expression=" + ".join(str(order["payment_history"][0]["amount"]) for order in orders))
    case.answer(f"All of them are cancelled; {total:.2f} goes back to you.", figure(total))


def cancel_too_late(case: Case) -> None:
    """An order that is on its way cannot be cancelled."""
    order = case.pick(case.with_status("processed"))
    tracking = order["fulfillments"][0]["tracking_id"][0]
    case.ask(f"Cancel {order['order_id']} for me, it is no longer needed.")
    case.detail("refused", "If it is too late for that, leave it as it is and give me the parcel's tracking number.")
    case.look_at(order)
    case.answer(f"It is on its way and cannot be cancelled. Its tracking number is {tracking}.", tracking)


def cancel_wrong_reason(case: Case) -> None:
    """The shop does not cancel because something is cheaper elsewhere."""
    order = case.pick(case.with_status("pending"))
    address = make_address(case.random)
    case.ask(f"Please cancel {order['order_id']}.")
    case.detail(
        "reason", "The reason is that another shop has it cheaper; I do need the things, and it was no mistake."
    )
    case.detail(
        "refused", f"If you do not cancel for that reason, keep the order and send it to {place(address)} instead."
    )
    case.look_at(order)
    _send_to(case, order, address)
    case.answer("It cannot be cancelled for that reason, so it stays, and goes to the new address.")


def cancel_one_item(case: Case) -> None:
    """Orders are cancelled as a whole or not at all."""
    order = case.plain(case.pick(case.with_status("pending")))
    case.need(len(order["items"]) > 1)
    item = case.random.choice(order["items"])
    case.ask(f"Take the {thing(item)} out of my order {order['order_id']} and refund it, the rest should come.")
    case.detail("refused", "If you cannot take out one thing, then cancel the whole order.")
    _cancel(case, order)
    case.answer("One item cannot be taken out, so the whole order is cancelled.")


def address_order(case: Case) -> None:
    """A pending order goes somewhere else."""
    order, address = case.pick(case.with_status("pending")), make_address(case.random)
    case.ask(f"I would like my order {order['order_id']} to go to another address.")
    case.detail("address", f"It should go to {place(address)}.")
    case.look_at(order)
    _send_to(case, order, address)
    case.answer("The order goes to the new address.")


def address_order_to_own(case: Case) -> None:
    """A pending order goes home instead."""
    away = [order for order in case.with_status("pending") if order["address"] != case.user["address"]]
    order = case.pick(away)
    case.ask(f"My order {order['order_id']} goes to the wrong place: send it to the address in my profile, please.")
    case.look_at(order)
    _send_to(case, order, case.user["address"])
    case.answer("The order goes to the address in your profile.")


def address_own_from_order(case: Case) -> None:
    """What an order has becomes the customer's own address."""
    order = case.pick([order for order in case.orders if order["address"] != case.user["address"]])
    case.ask(
        f"I have moved to where you sent {order['order_id']} to. Make that the address in my profile; "
        "my orders themselves stay as they are."
    )
    case.look_at(order)
    _set_own_address(case, order["address"])
    case.answer("The address of that order is the one in your profile now.")


def address_move(case: Case) -> None:
    """The customer has moved: the profile and all that is not on its way yet."""
    orders = case.with_status("pending", "pending (item modified)")
    case.need(2 <= len(orders) <= 3)
    address = make_address(case.random)
    case.ask("I am moving. Please change the address in my profile, and that of every order which is still pending.")
    case.detail("address", f"The new address is {place(address)}.")
    _set_own_address(case, address)
    case.look_at(*case.orders)
    for order in orders:
        _send_to(case, order, address)
    case.answer(f"Your profile and {len(orders)} orders have the new address.")


def address_too_late(case: Case) -> None:
    """An order that is on its way cannot be redirected."""
    order, address = case.pick(case.with_status("processed", "delivered")), make_address(case.random)
    case.ask(f"Redirect order {order['order_id']} to my new home.")
    case.detail("address", f"My new home is {place(address)}.")
    case.detail("refused", "If the order cannot be redirected any more, then only put that address into my profile.")
    case.look_at(order)
    _set_own_address(case, address)
    case.answer("The order cannot be redirected; your profile has the new address.")


def payment_other(case: Case) -> None:
    """Another card or wallet pays."""
    order = case.pick(case.with_status("pending"))
    method = case.pick(case.plain_methods(but=case.paid_by(order)))
    case.ask(f"I want to pay order {order['order_id']} in another way.")
    case.detail("payment", f"Charge it to {case.named(method['id'])} instead.")
    case.look_at(order)
    case.call("modify_pending_order_payment", order_id=order["order_id"], payment_method_id=method["id"])
    case.answer("The order is paid by that one now, and the first payment goes back.")


def payment_gift_card(case: Case) -> None:
    """A gift card pays that holds enough."""
    order = case.pick(case.with_status("pending"))
    card, amount = case.pick(case.methods("gift_card", but=case.paid_by(order))), order["payment_history"][0]["amount"]
    case.need(card["balance"] >= amount)
    left = round(card["balance"] - amount, 2)
    case.ask(
        f"Let {case.named(card['id'])} pay for {order['order_id']}, and tell me in figures what is left on it afterwards."
    )
    case.look_at(order)
    case.call("modify_pending_order_payment", order_id=order["order_id"], payment_method_id=card["id"])
    case.answer(f"The gift card has paid, and {left:.2f} is left on it.", figure(left))


def payment_gift_card_low(case: Case) -> None:
    """A gift card does not hold enough, and another method is to pay then."""
    order = case.pick(case.with_status("pending"))
    before = case.paid_by(order)
    card, method = case.pick(case.methods("gift_card", but=before)), case.pick(case.plain_methods(but=before))
    case.need(card["balance"] < order["payment_history"][0]["amount"])
    case.ask(f"Let {case.named(card['id'])} pay for {order['order_id']}.")
    case.detail(
        "refused", f"If there is not enough on it, do not split anything: take {case.named(method['id'])} then."
    )
    case.look_at(order)
    case.call("modify_pending_order_payment", order_id=order["order_id"], payment_method_id=method["id"])
    case.answer("The gift card does not hold enough, so the other one pays.")


def payment_then_items(case: Case) -> None:
    """The payment has to be changed before the items: afterwards it cannot be."""
    order = case.plain(case.pick(case.with_status("pending")))
    item = case.random.choice(order["items"])
    variant, method = case.pick(case.variants(item)), case.pick(case.plain_methods(but=case.paid_by(order)))
    name = case.named(method["id"])
    case.ask(
        f"Two things about {order['order_id']}. I want the {thing(item)} with {wish(item, variant)}. "
        f"And the whole order should be paid by {name}, the difference in price as well."
    )
    case.look_at(order)
    case.call("modify_pending_order_payment", order_id=order["order_id"], payment_method_id=method["id"])
    _replace(case, order, [(item, variant)], method["id"])
    case.answer("Both are done.")


def items_one(case: Case) -> None:
    """One item becomes another variant of its product."""
    order = case.plain(case.pick(case.with_status("pending")))
    item = case.random.choice(order["items"])
    variant, method = case.pick(case.variants(item)), case.pick(case.methods())
    case.need(variant["price"] != item["price"])
    case.need(_affordable(method, variant["price"] - item["price"]))
    case.ask(
        f"In order {order['order_id']} I would like the {thing(item)} with {wish(item, variant)}. "
        "How much more or less does it cost? In figures, please."
    )
    case.detail("payment", f"Use {case.named(method['id'])} for the difference.")
    more = _replace(case, order, [(item, variant)], method["id"])
    case.answer(f"It is changed, for {abs(more):.2f} {'more' if more > 0 else 'less'}.", figure(abs(more)))


def items_several(case: Case) -> None:
    """Several items are replaced: in one call, for there is no second one."""
    order = case.plain(case.pick(case.with_status("pending")))
    swaps = case.swaps(order)
    method = case.pick(case.methods())
    case.need(_affordable(method, sum(variant["price"] - item["price"] for item, variant in swaps)))
    wanted = listed([f"the {thing(item)} with {wish(item, variant)}" for item, variant in swaps])
    case.ask(f"Please change some things in my order {order['order_id']} before you send it: {wanted}.")
    case.detail("payment", f"Settle the difference with {case.named(method['id'])}.")
    _replace(case, order, swaps, method["id"])
    case.answer("All of it is changed.")


def items_unavailable(case: Case) -> None:
    """What is wanted first is not there, and the second choice is."""
    order = case.plain(case.pick(case.with_status("pending")))
    item = case.random.choice(order["items"])
    first, second = case.pick(case.variants(item, available=False)), case.pick(case.variants(item))
    method = case.pick(case.plain_methods())
    case.ask(f"Could I have the {thing(item)} of order {order['order_id']} with {wish(item, first)}?")
    case.detail("refused", f"If that is not available, change it to one with {wish(item, second)}.")
    case.detail("payment", f"The difference goes through {case.named(method['id'])}.")
    _replace(case, order, [(item, second)], method["id"])
    case.answer("The first choice is not available; the second one is in the order now.")


def items_gift_card_low(case: Case) -> None:
    """The gift card does not cover the difference."""
    order = case.plain(case.pick(case.with_status("pending")))
    card, method = case.pick(case.methods("gift_card")), case.pick(case.plain_methods())
    item, variant = case.too_dear(order, card)
    case.ask(f"I have second thoughts about {order['order_id']}: I want the {thing(item)} with {wish(item, variant)}.")
    case.detail("payment", f"Pay the difference from {case.named(card['id'])}.")
    case.detail(
        "refused", f"If the card does not cover it, take all of the difference from {case.named(method['id'])}."
    )
    _replace(case, order, [(item, variant)], method["id"])
    case.answer("The gift card does not cover the difference, so the other method paid it.")


def items_other_product(case: Case) -> None:
    """An item cannot become another product."""
    order = case.plain(case.pick(case.with_status("pending")))
    item = case.random.choice(order["items"])
    others = [kind["name"].lower() for kind in case.database["products"].values() if kind["name"] != item["name"]]
    variant, method = case.pick(case.variants(item)), case.pick(case.plain_methods())
    case.ask(
        f"In {order['order_id']}, swap the {thing(item)} for another product of the same price: {case.random.choice(others)}."
    )
    case.detail("refused", f"If it has to stay the same product, then change it to one with {wish(item, variant)}.")
    case.detail("payment", f"For the difference there is {case.named(method['id'])}.")
    _replace(case, order, [(item, variant)], method["id"])
    case.answer("It cannot become another product; you get the other variant.")


def items_cheapest(case: Case) -> None:
    """An item becomes the cheapest one that there is."""
    order = case.plain(case.pick(case.with_status("pending")))
    item = case.random.choice(order["items"])
    stock = sorted(
        (variant for variant in case.product(item)["variants"].values() if variant["available"]),
        key=lambda variant: variant["price"],
    )
    case.need(len(stock) > 1 and stock[0]["price"] < min(stock[1]["price"], item["price"]))
    method = case.pick(case.methods())
    saved = round(item["price"] - stock[0]["price"], 2)
    case.ask(
        f"I have to save money. Put the cheapest {thing(item)} that is available into {order['order_id']} instead of mine, "
        "whatever its options are. What do I save, in figures?"
    )
    case.detail("payment", f"Give the difference back to {case.named(method['id'])}.")
    _replace(case, order, [(item, stock[0])], method["id"])
    case.answer(f"That saves {saved:.2f}.", figure(saved))


def items_after_items(case: Case) -> None:
    """Items can be replaced once; where the order goes can still be changed."""
    order = case.plain(case.pick(case.with_status("pending (item modified)")))
    item = case.random.choice(order["items"])
    variant, method = case.pick(case.variants(item)), case.pick(case.plain_methods())
    address = make_address(case.random)
    case.ask(f"Change the {thing(item)} in {order['order_id']} once more: with {wish(item, variant)}.")
    case.detail("payment", f"The difference is for {case.named(method['id'])}.")
    case.detail("refused", "If the items cannot be changed again, leave them.")
    case.look_at(order)
    case.answer("Its items were changed before, and that can be done once only.")
    case.ask(f"In any case, send that order {order['order_id']} to {place(address)}.")
    _send_to(case, order, address)
    case.answer("The items stay as they are: they were changed once already. The order goes to the new address.")
