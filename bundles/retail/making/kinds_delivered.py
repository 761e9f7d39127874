"""Kinds of tasks about what customers have received: returning it, and exchanging it."""

from __future__ import annotations

from making.case import Case, figure
from making.database import Record, make_address
from making.words import listed, place, thing, wish

__all__ = [
    "exchange_and_move",
    "exchange_gift_card_low",
    "exchange_one",
    "exchange_or_return",
    "exchange_several",
    "exchange_unavailable",
    "return_all_but_one",
    "return_and_cancel",
    "return_both_or_one",
    "return_by_content",
    "return_some",
    "return_to_gift_card",
    "return_undelivered",
    "return_wrong_method",
]


def _return(case: Case, order: Record, items: list[Record], method_id: str) -> float:
    """Let the clerk take items back; return what the customer gets for them."""
    case.look_at(order)
    case.call(
        "return_delivered_order_items",
        order_id=order["order_id"],
        item_ids=[item["item_id"] for item in items],
        payment_method_id=method_id,
    )
    return round(sum(item["price"] for item in items), 2)


def _exchange(case: Case, order: Record, swaps: list[tuple[Record, Record]], method_id: str) -> float:
    """Let the clerk exchange items; return what the new ones cost more."""
    return case.swap("exchange_delivered_order_items", order, swaps, method_id)


def _delivered(case: Case, items: int = 1) -> Record:
    """Return a delivered order with so many items at least, none of them twice."""
    order = case.plain(case.pick(case.with_status("delivered")))
    case.need(len(order["items"]) >= items)
    return order


def return_some(case: Case) -> None:
    """Some items go back, and the money to what paid."""
    order = _delivered(case, 3)
    items = case.random.sample(order["items"], 2)
    method_id = case.paid_by(order)
    case.ask(
        f"From order {order['order_id']} I want to return {listed([f'the {thing(item)}' for item in items])}. "
        "How much do I get back in all? In figures, please."
    )
    case.detail("payment", "Refund it to what I paid the order with.")
    amount = _return(case, order, items, method_id)
    case.call("calculate", expression=" + ".join(str(item["price"]) for item in items))
    case.answer(f"You will get {amount:.2f} back, and an email on how to send them.", figure(amount))


def return_by_content(case: Case) -> None:
    """One item goes back, and what it is says from which order."""
    order = _delivered(case)
    item = case.random.choice(order["items"])
    case.only_in(item)
    case.ask(f"The {thing(item)} that you delivered is not for me, I want to send it back. The order number is lost.")
    case.detail("payment", "The money should go back to where it came from.")
    case.look_at(*case.orders)
    _return(case, order, [item], case.paid_by(order))
    case.answer("The return is noted; an email says how to send it.")


def return_to_gift_card(case: Case) -> None:
    """A gift card may get the refund, whatever paid."""
    order = _delivered(case)
    card = case.pick(case.methods("gift_card", but=case.paid_by(order)))
    item = case.random.choice(order["items"])
    case.ask(f"I am returning the {thing(item)} of {order['order_id']}.")
    case.detail("payment", f"Please put the money on {case.named(card['id'])}.")
    _return(case, order, [item], card["id"])
    case.answer("The refund will go to your gift card.")


def return_wrong_method(case: Case) -> None:
    """Another card than the one that paid does not get the refund."""
    order = _delivered(case)
    before = case.paid_by(order)
    wanted = case.pick(case.plain_methods(but=before))
    second = case.pick([*case.methods("gift_card", but=before), case.user["payment_methods"][before]])
    item = case.random.choice(order["items"])
    case.ask(f"Take back the {thing(item)} from order {order['order_id']}.")
    case.detail("payment", f"I want the refund on {case.named(wanted['id'])}.")
    case.detail("refused", f"If it cannot go there, then {case.named(second['id'])} will do.")
    _return(case, order, [item], second["id"])
    case.answer("It cannot go there, so the refund goes to the other one.")


def return_all_but_one(case: Case) -> None:
    """Everything goes back but one thing."""
    order = _delivered(case, 3)
    kept = case.random.choice(order["items"])
    items = [item for item in order["items"] if item is not kept]
    case.ask(f"Of everything in {order['order_id']} I only keep the {thing(kept)}. I return the rest.")
    case.detail("payment", "The refund goes to what paid it.")
    _return(case, order, items, case.paid_by(order))
    case.answer("All but that one are noted as returns.")


def return_both_or_one(case: Case) -> None:
    """An item is there twice, and one of the two or both go back."""
    order = case.pick(case.with_status("delivered"))
    twice = [item for item in order["items"] if sum(each["item_id"] == item["item_id"] for each in order["items"]) == 2]
    item = case.pick(twice)
    count = case.random.randrange(1, 3)
    case.ask(
        f"{order['order_id']} has the {thing(item)} twice. I return {('one of the two', 'both')[count - 1]}, nothing else."
    )
    case.detail("payment", "Please refund what I paid with.")
    _return(case, order, [item] * count, case.paid_by(order))
    case.answer("The return is noted.")


def return_undelivered(case: Case) -> None:
    """What has not been delivered cannot be returned, but the order can be cancelled."""
    order = case.plain(case.pick(case.with_status("pending")))
    case.ask(f"I want to return all that is in {order['order_id']}: it is no longer needed.")
    case.detail("payment", "I want the money where it came from.")
    case.detail("refused", "If it cannot be returned because it has not been delivered, cancel the order.")
    case.look_at(order)
    case.call("cancel_pending_order", order_id=order["order_id"], reason="no longer needed")
    case.answer("It has not been delivered, so the order is cancelled instead.")


def exchange_one(case: Case) -> None:
    """One item is exchanged."""
    order = _delivered(case)
    item = case.random.choice(order["items"])
    variant = case.pick(case.variants(item))
    case.need(variant["price"] != item["price"])
    method = case.pick(case.plain_methods())
    case.ask(
        f"I would like to exchange the {thing(item)} from {order['order_id']} for the same with {wish(item, variant)}. "
        "What is the difference in price, in figures?"
    )
    case.detail("payment", f"Use {case.named(method['id'])} for it.")
    more = _exchange(case, order, [(item, variant)], method["id"])
    case.answer(f"The exchange is noted; it costs {abs(more):.2f} {'more' if more > 0 else 'less'}.", figure(abs(more)))


def exchange_several(case: Case) -> None:
    """Several items are exchanged: in one call, for there is no second one."""
    order = _delivered(case, 2)
    swaps = case.swaps(order, near=False)
    method = case.pick(case.plain_methods())
    wanted = listed([f"the {thing(item)} for the same with {wish(item, variant)}" for item, variant in swaps])
    case.ask(f"About {order['order_id']}, which came yesterday: please exchange {wanted}.")
    case.detail("payment", f"Whatever it costs more or less, use {case.named(method['id'])}.")
    _exchange(case, order, swaps, method["id"])
    case.answer("The exchange is noted; an email says how to send them.")


def exchange_unavailable(case: Case) -> None:
    """What is wanted is not there, so the item goes back."""
    order = _delivered(case)
    item = case.random.choice(order["items"])
    variant = case.pick(case.variants(item, available=False))
    method = case.pick(case.plain_methods())
    case.ask(f"Please exchange the {thing(item)} in order {order['order_id']} for the same with {wish(item, variant)}.")
    case.detail("payment", f"The difference is for {case.named(method['id'])}.")
    case.detail("refused", "If you do not have that one, I return mine instead, and the refund goes to what paid it.")
    case.look_up(item)
    _return(case, order, [item], case.paid_by(order))
    case.answer("That one is not available, so the return is noted.")


def exchange_gift_card_low(case: Case) -> None:
    """The gift card does not cover the difference."""
    order = _delivered(case)
    card, method = case.pick(case.methods("gift_card")), case.pick(case.plain_methods())
    item, variant = case.too_dear(order, card)
    case.ask(f"Exchange the {thing(item)} that came with {order['order_id']} for the same with {wish(item, variant)}.")
    case.detail("payment", f"The difference is to be paid by {case.named(card['id'])}.")
    case.detail("refused", f"If the balance is too low, charge all of the difference to {case.named(method['id'])}.")
    _exchange(case, order, [(item, variant)], method["id"])
    case.answer("The gift card does not cover it, so the other method pays.")


def exchange_or_return(case: Case) -> None:
    """An order can be returned or exchanged, once, and not both."""
    order = _delivered(case, 2)
    back, item = case.random.sample(order["items"], 2)
    variant = case.pick(case.variants(item))
    method = case.pick(case.plain_methods())
    case.ask(
        f"Two things in {order['order_id']}: I return the {thing(back)}, and exchange the {thing(item)} for the same with "
        f"{wish(item, variant)}."
    )
    case.detail("payment", f"The refund goes to what paid it, and the difference through {case.named(method['id'])}.")
    case.detail(
        "refused", f"If only one of the two is possible, I return the {thing(back)} and keep the other as it is."
    )
    _return(case, order, [back], case.paid_by(order))
    case.answer("Only one of the two can be done for an order, so the return is noted.")


def exchange_and_move(case: Case) -> None:
    """An exchange, and a new address for another order and for the profile."""
    order, other = _delivered(case), case.pick(case.with_status("pending"))
    item = case.random.choice(order["items"])
    variant = case.pick(case.variants(item))
    method, address = case.pick(case.plain_methods()), make_address(case.random)
    case.ask(
        f"The {thing(item)} from {order['order_id']} does not suit me, I want to exchange it for the same with {wish(item, variant)}."
    )
    case.detail("payment", f"Take {case.named(method['id'])} for the difference.")
    _exchange(case, order, [(item, variant)], method["id"])
    case.ask(f"Also, {other['order_id']} has to go to my new office, and my profile should have that address too.")
    case.detail("address", f"The office is at {place(address)}.")
    case.look_at(other)
    case.call("modify_pending_order_address", order_id=other["order_id"], **address)
    case.call("modify_user_address", user_id=case.user["user_id"], **address)
    case.answer("The exchange is noted, and the order and your profile have the new address.")


def return_and_cancel(case: Case) -> None:
    """A return from one order, the end of another one, and a sum over both."""
    order, other = _delivered(case, 2), case.pick(case.with_status("pending"))
    item = case.random.choice(order["items"])
    case.ask(f"Please take back the {thing(item)} from {order['order_id']}.")
    case.detail("payment", "The refund goes to what I paid with.")
    first = _return(case, order, [item], case.paid_by(order))
    case.ask(
        f"Then cancel {other['order_id']}, which was ordered by mistake, and tell me in figures what I get back for both together."
    )
    second = other["payment_history"][0]["amount"]
    case.look_at(other)
    case.call("cancel_pending_order", order_id=other["order_id"], reason="ordered by mistake")
    case.call("calculate", expression=f"{first} + {second}")
    total = round(first + second, 2)
    case.answer(f"Both are done; together you get {total:.2f} back.", figure(total))
