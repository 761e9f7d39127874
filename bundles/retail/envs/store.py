"""The store env: what a clerk at a shop's support desk can look up and change.

The state is the shop's database: `products` (with their variants), `users` and `orders`, each by id. Sixteen tools, with
the names, parameters and effects of tau2-bench's retail domain. A tool refuses what the shop does not do, in a sentence
that says why; whether a change is allowed for this customer, and was agreed to, is for the clerk to know.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Any

from agent_env import Env, ToolError, tool

Record = dict[str, Any]
Swap = tuple[Record, Record]
"""An item of an order, and the variant that is to take its place."""

_REASONS = ("no longer needed", "ordered by mistake")
_LATER_FIELDS = (
    "cancel_reason",
    "exchange_items",
    "exchange_new_items",
    "exchange_payment_method_id",
    "exchange_price_difference",
    "return_items",
    "return_payment_method_id",
)
"""What an order has only after something was done with it; shown as null before."""
_EXPRESSION_CHARS = frozenset("0123456789+-*/(). ")
_EXPRESSION_LENGTH = 500
_DIGITS = re.compile(r"[0-9@]")


class Store(Env):
    """A shop's products, customers and orders."""

    @tool
    def calculate(self, expression: str) -> str:
        """Work out an arithmetic expression. The result is rounded to two decimals.

        Args:
            expression: Numbers, the operators + - * /, parentheses and blanks, such as '19.99 * 2 - 5'.
        """
        if not _EXPRESSION_CHARS.issuperset(expression):
            raise ToolError("an expression has digits, points, + - * /, parentheses and blanks, nothing else")
        if len(expression) > _EXPRESSION_LENGTH:
            raise ToolError(f"an expression has at most {_EXPRESSION_LENGTH} characters: work it out in parts")
        try:
            return str(round(float(_value(ast.parse(expression.strip(), mode="eval").body)), 2))
        except ZeroDivisionError:
            raise ToolError("the expression divides by zero") from None
        except (SyntaxError, ValueError, OverflowError, RecursionError):
            raise ToolError("this is no expression that can be worked out: write it like '(2 + 3) * 4.5'") from None

    @tool
    def cancel_pending_order(self, order_id: str, reason: str) -> Record:
        """Cancel a whole order that is still pending; one that is processed or delivered cannot be cancelled.

        Tell the customer what will happen and get a clear yes before. Each payment goes back to where it came from: to
        a gift card at once, to anything else within 5 to 7 business days. Answers with the order as it is afterwards.

        Args:
            order_id: The order's id, '#' included, such as '#W0000000'.
            reason: Either 'no longer needed' or 'ordered by mistake'.
        """
        order = self._order(order_id)
        if order["status"] != "pending":
            raise ToolError(f"order {order_id} is {order['status']}: only a pending order can be cancelled")
        if reason not in _REASONS:
            raise ToolError(f"the reason is either '{_REASONS[0]}' or '{_REASONS[1]}'")
        refunds: list[Record] = []
        for method_id, amount in _paid(order).items():
            refunds.append(_entry("refund", amount, method_id))
            self._add_to_gift_card(self._payment_method(order, method_id), amount)
        order["payment_history"].extend(refunds)
        order["status"] = "cancelled"
        order["cancel_reason"] = reason
        return _shown(order)

    @tool
    def exchange_delivered_order_items(
        self, order_id: str, item_ids: list[str], new_item_ids: list[str], payment_method_id: str
    ) -> Record:
        """Take items of a delivered order back, and send other variants of the same products for them.

        An order can be returned or exchanged once only, so name all of its items in one call. Tell the customer what
        will happen and get a clear yes before. Answers with the order as it is afterwards.

        Args:
            order_id: The order's id, '#' included, such as '#W0000000'.
            item_ids: The items to take back, such as '1008292230'; one that is there twice may be named twice.
            new_item_ids: What to send for them, in the same order: each a variant of the same product.
            payment_method_id: What pays the difference in price, or gets it back, such as 'gift_card_0000000' or
                'credit_card_0000000'; the customer's and the order's details have the ids.
        """
        order = self._order(order_id)
        if order["status"] != "delivered":
            raise ToolError(f"order {order_id} is {order['status']}: only a delivered order can be exchanged")
        swaps = self._swaps(order, item_ids, new_item_ids)
        difference = round(_difference(swaps), 2)
        self._check_balance(self._payment_method(order, payment_method_id), difference)
        order["status"] = "exchange requested"
        order["exchange_items"] = sorted(item_ids)
        order["exchange_new_items"] = sorted(new_item_ids)
        order["exchange_payment_method_id"] = payment_method_id
        order["exchange_price_difference"] = difference
        return _shown(order)

    @tool
    def find_user_id_by_name_zip(self, first_name: str, last_name: str, zip: str) -> str:
        """Find a customer's user id by name and zip code, when the email address did not find it or is not known.

        Args:
            first_name: The customer's first name, such as 'John'.
            last_name: The customer's last name, such as 'Doe'.
            zip: The zip code of the customer's own address, such as '12345'.
        """
        wanted = (first_name.lower(), last_name.lower())
        for user_id, user in self._each("users", likely="_".join(wanted)):
            name = user["name"]
            if user["address"]["zip"] == zip and (name["first_name"].lower(), name["last_name"].lower()) == wanted:
                return user_id
        raise ToolError("there is no user with this name and zip code")

    @tool
    def find_user_id_by_email(self, email: str) -> str:
        """Find a customer's user id by email address.

        Args:
            email: The customer's email address, such as 'something@example.com'.
        """
        wanted = email.lower()
        for user_id, user in self._each("users", likely=_DIGITS.split(wanted, 1)[0].replace(".", "_")):
            if user["email"].lower() == wanted:
                return user_id
        raise ToolError("there is no user with this email address")

    @tool
    def get_order_details(self, order_id: str) -> Record:
        """Look up an order: its status, items, address, deliveries and payments.

        Args:
            order_id: The order's id, '#' included, such as '#W0000000'.
        """
        return _shown(self._order(order_id))

    @tool
    def get_product_details(self, product_id: str) -> Record:
        """Look up a product: all its variants, with options, price, and whether each is available.

        Args:
            product_id: The product's id, such as '6086499569'. An item's id is another thing.
        """
        try:
            return self.state["products"][product_id]
        except KeyError:
            raise ToolError(f"there is no product '{product_id}': is it an item's id?") from None

    @tool
    def get_item_details(self, item_id: str) -> Record:
        """Look up one variant of a product: its options, its price, and whether it is available.

        Args:
            item_id: The item's id, such as '6086499569'. A product's id is another thing.
        """
        for _, product in self._each("products"):
            if item_id in product["variants"]:
                return product["variants"][item_id]
        raise ToolError(f"there is no item '{item_id}': is it a product's id?")

    @tool
    def get_user_details(self, user_id: str) -> Record:
        """Look up a customer: name, address, email address, payment methods, and the ids of all orders.

        Args:
            user_id: The user id, such as 'sara_doe_496'.
        """
        return self._user(user_id)

    @tool
    def list_all_product_types(self) -> dict[str, str]:
        """List every product that the shop has, by name, with its product id. Each has several variants to choose from."""
        return dict(sorted((product["name"], product_id) for product_id, product in self._each("products")))

    @tool
    def modify_pending_order_address(
        self, order_id: str, address1: str, address2: str, city: str, state: str, country: str, zip: str
    ) -> Record:
        """Change where a pending order is sent to. Tell the customer what will happen and get a clear yes before.

        Args:
            order_id: The order's id, '#' included, such as '#W0000000'.
            address1: The address's first line, such as '123 Main St'.
            address2: Its second line, such as 'Apt 1'; empty when it has none.
            city: The city, such as 'San Francisco'.
            state: The state, such as 'CA'.
            country: The country, such as 'USA'.
            zip: The zip code, such as '12345'.
        """
        order = self._pending(order_id)
        order["address"] = _address(address1, address2, city, state, country, zip)
        return _shown(order)

    @tool
    def modify_pending_order_items(
        self, order_id: str, item_ids: list[str], new_item_ids: list[str], payment_method_id: str
    ) -> Record:
        """Replace items of a pending order by other variants of the same products.

        It can be done once for an order, so name all of its items in one call. Tell the customer what will happen and
        get a clear yes before. Answers with the order as it is afterwards.

        Args:
            order_id: The order's id, '#' included, such as '#W0000000'.
            item_ids: The items to replace, such as '1008292230'; one that is there twice may be named twice.
            new_item_ids: What to put in their place, in the same order: each a variant of the same product.
            payment_method_id: What pays the difference in price, or gets it back, such as 'gift_card_0000000' or
                'credit_card_0000000'; the customer's and the order's details have the ids.
        """
        order = self._order(order_id)
        if order["status"] != "pending":
            raise ToolError(f"order {order_id} is {order['status']}: items can be replaced once, while it is pending")
        swaps = self._swaps(order, item_ids, new_item_ids)
        difference = self._amount(_difference(swaps))
        method = self._payment_method(order, payment_method_id)
        self._check_balance(method, difference)
        self._add_to_gift_card(method, -difference)
        kind = "payment" if difference > 0 else "refund"
        order["payment_history"].append(_entry(kind, abs(difference), payment_method_id))
        self._replace(order, swaps)
        order["status"] = "pending (item modified)"
        return _shown(order)

    @tool
    def modify_pending_order_payment(self, order_id: str, payment_method_id: str) -> Record:
        """Have a pending order paid by another of the customer's payment methods.

        The first one gets its money back: a gift card at once, anything else within 5 to 7 business days. Tell the
        customer what will happen and get a clear yes before.

        Args:
            order_id: The order's id, '#' included, such as '#W0000000'.
            payment_method_id: The method that is to pay, such as 'gift_card_0000000' or 'credit_card_0000000'; the
                customer's and the order's details have the ids.
        """
        order = self._pending(order_id)
        method = self._payment_method(order, payment_method_id)
        history = order["payment_history"]
        if len(history) != 1 or history[0]["transaction_type"] != "payment":
            raise ToolError(f"order {order_id} has more than its first payment: its payment cannot be changed any more")
        before, amount = history[0]["payment_method_id"], history[0]["amount"]
        if before == payment_method_id:
            raise ToolError(f"order {order_id} is paid by {payment_method_id} already: name another method")
        self._check_balance(method, amount)
        history.extend([_entry("payment", amount, payment_method_id), _entry("refund", amount, before)])
        self._add_to_gift_card(method, -amount)
        self._add_to_gift_card(self._payment_method(order, before), amount)
        return _shown(order)

    @tool
    def modify_user_address(
        self, user_id: str, address1: str, address2: str, city: str, state: str, country: str, zip: str
    ) -> Record:
        """Change a customer's own address, the default of later orders; orders that there are keep theirs.

        Tell the customer what will happen and get a clear yes before.

        Args:
            user_id: The user id, such as 'sara_doe_496'.
            address1: The address's first line, such as '123 Main St'.
            address2: Its second line, such as 'Apt 1'; empty when it has none.
            city: The city, such as 'San Francisco'.
            state: The state, such as 'CA'.
            country: The country, such as 'USA'.
            zip: The zip code, such as '12345'.
        """
        user = self._user(user_id)
        user["address"] = _address(address1, address2, city, state, country, zip)
        return user

    @tool
    def return_delivered_order_items(self, order_id: str, item_ids: list[str], payment_method_id: str) -> Record:
        """Take items of a delivered order back for a refund. The customer gets an email on how to send them.

        An order can be returned or exchanged once only, so name all of its items in one call. Tell the customer what
        will happen and get a clear yes before. Answers with the order as it is afterwards: 'return requested'.

        Args:
            order_id: The order's id, '#' included, such as '#W0000000'.
            item_ids: The items to take back, such as '1008292230'; one that is there twice may be named twice.
            payment_method_id: What gets the refund: what paid the order, or one of the customer's gift cards, such as
                'gift_card_0000000'; the customer's and the order's details have the ids.
        """
        order = self._order(order_id)
        if order["status"] != "delivered":
            raise ToolError(f"order {order_id} is {order['status']}: only items of a delivered order can be returned")
        method = self._payment_method(order, payment_method_id)
        paid_by = order["payment_history"][0]["payment_method_id"]
        if method["source"] != "gift_card" and payment_method_id != paid_by:
            raise ToolError(f"a refund goes to what paid the order, {paid_by}, or to a gift card of the customer")
        _items(order, item_ids)
        order["status"] = "return requested"
        order["return_items"] = sorted(item_ids)
        order["return_payment_method_id"] = payment_method_id
        return _shown(order)

    @tool
    def transfer_to_human_agents(self, summary: str) -> str:
        """Hand the customer over to a colleague, with a summary of what it is about.

        Only when the customer asks for a person, or when the policy and the tools leave no way to do what is asked.

        Args:
            summary: What the customer wants, and how far it got.
        """
        return "Transfer successful"

    def _each(self, table: str, *, likely: str = "") -> Iterator[tuple[str, Record]]:
        """Yield the records of a table with their ids, to look at and not to change.

        Those whose id starts with `likely` come first: users have ids made of their names, and to read them all takes
        milliseconds.
        """
        records: dict[str, Record] = self.state[table]
        if type(records) is not dict:
            # A large table is made the episode's own record by record, as each is asked for. A copy of it is as cheap as
            # it was, and what is asked of the copy does not stay in memory with the state.
            records = deepcopy(records)
        for record_id in sorted(records, key=lambda record_id: not record_id.startswith(likely)):
            yield record_id, records[record_id]

    def _user(self, user_id: str) -> Record:
        try:
            return self.state["users"][user_id]
        except KeyError:
            raise ToolError(f"there is no user '{user_id}'") from None

    def _order(self, order_id: str) -> Record:
        try:
            return self.state["orders"][order_id]
        except KeyError:
            raise ToolError(f"there is no order '{order_id}': an order's id is '#W' and digits") from None

    def _pending(self, order_id: str) -> Record:
        """Return an order that is not on its way yet, its items replaced or not."""
        order = self._order(order_id)
        if not order["status"].startswith("pending"):
            raise ToolError(f"order {order_id} is {order['status']}: only a pending order can be changed")
        return order

    def _payment_method(self, order: Record, payment_method_id: str) -> Record:
        try:
            return self._user(order["user_id"])["payment_methods"][payment_method_id]
        except KeyError:
            raise ToolError(f"the customer has no payment method '{payment_method_id}'") from None

    def _check_balance(self, method: Record, amount: float) -> None:
        if method["source"] == "gift_card" and method["balance"] < amount:
            raise ToolError(f"the gift card holds {method['balance']:.2f}, and {amount:.2f} is to be paid")

    def _add_to_gift_card(self, method: Record, amount: float) -> None:
        if method["source"] == "gift_card":
            method["balance"] = round(method["balance"] + amount, 2)

    def _swaps(self, order: Record, item_ids: Sequence[str], new_item_ids: Sequence[str]) -> list[Swap]:
        """Return what is to take the place of what, when all of it can be had."""
        if len(item_ids) != len(new_item_ids):
            raise ToolError(f"{len(item_ids)} items and {len(new_item_ids)} new ones: name one new item for each")
        swaps: list[Swap] = []
        for item, new_item_id in zip(_items(order, item_ids), new_item_ids, strict=True):
            variant = self.state["products"][item["product_id"]]["variants"].get(new_item_id)
            if variant is None:
                raise ToolError(
                    f"item '{new_item_id}' is no variant of {item['name']}, which it is to take the place of"
                )
            if new_item_id == item["item_id"]:
                raise ToolError(f"item '{new_item_id}' is what the order has already: name another variant")
            if not variant["available"]:
                raise ToolError(f"item '{new_item_id}' is not available")
            swaps.append((item, variant))
        return swaps

    def _amount(self, difference: float) -> float:
        """Return what is paid, or given back where it is below zero, for replaced items."""
        return round(difference, 2)

    def _replace(self, order: Record, swaps: Sequence[Swap]) -> None:
        """Put the new variants in the place of an order's items."""
        for item, variant in swaps:
            item["item_id"] = variant["item_id"]
            item["price"] = variant["price"]
            item["options"] = dict(variant["options"])


def _items(order: Record, item_ids: Sequence[str]) -> list[Record]:
    """Return the items of an order that are named, one that is named twice from two places."""
    if not item_ids:
        raise ToolError("no item is named")
    left = list(order["items"])
    found: list[Record] = []
    for item_id in item_ids:
        at = next((at for at, item in enumerate(left) if item["item_id"] == item_id), None)
        if at is None:
            times = Counter(item_ids)[item_id]
            what = f"item '{item_id}'" if times == 1 else f"item '{item_id}' {times} times"
            raise ToolError(f"order {order['order_id']} does not have {what}")
        found.append(left.pop(at))
    return found


def _difference(swaps: Sequence[Swap]) -> float:
    """Return what the new variants cost more than the items.

    Added up one by one: `sum` of floats gives other last digits from Python 3.12 on.
    """
    difference = 0.0
    for item, variant in swaps:
        difference += variant["price"] - item["price"]
    return difference


def _paid(order: Record) -> dict[str, float]:
    """Return what each payment method has paid for an order, refunds taken off."""
    paid: dict[str, float] = {}
    for entry in order["payment_history"]:
        amount = entry["amount"] if entry["transaction_type"] == "payment" else -entry["amount"]
        method_id = entry["payment_method_id"]
        paid[method_id] = round(paid.get(method_id, 0.0) + amount, 2)
    return {method_id: amount for method_id, amount in paid.items() if amount > 0}


def _entry(kind: str, amount: float, payment_method_id: str) -> Record:
    return {"transaction_type": kind, "amount": amount, "payment_method_id": payment_method_id}


def _address(address1: str, address2: str, city: str, state: str, country: str, zip_code: str) -> Record:
    return {
        "address1": address1,
        "address2": address2,
        "city": city,
        "country": country,
        "state": state,
        "zip": zip_code,
    }


def _shown(order: Record) -> Record:
    """Return an order with every field that one can have."""
    return {**dict.fromkeys(_LATER_FIELDS), **order}


def _value(node: ast.expr) -> float:
    match node:
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _value(operand)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _value(left) + _value(right)
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            return _value(left) - _value(right)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return _value(left) * _value(right)
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            return _value(left) / _value(right)
        case _:
            raise ValueError("no arithmetic")
