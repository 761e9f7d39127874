"""How customers put things."""

from __future__ import annotations

from random import Random

from making.case import changes
from making.database import Record

__all__ = ["closing", "introduction", "listed", "place", "thing", "wish"]


def introduction(user: Record, random: Random, *, email: str | None) -> list[str]:
    """Return how a customer says who they are: by an email address that the shop may have, and by name and zip code."""
    name = f"{user['name']['first_name']} {user['name']['last_name']}"
    by_name = f"I am {name}, zip code {user['address']['zip']}."
    if email is None:
        return [f"{by_name} I do not know which email address you have of me."]
    by_email = random.choice(
        [f"My email address should be {email}.", f"You have me as {email}, I think.", f"Look for {email}, please."]
    )
    return [by_email, by_name]


def closing(random: Random) -> str:
    """Return how a customer ends a message that is to be acted on at once."""
    return random.choice(
        [
            "I confirm all of this: please go ahead, I cannot answer questions today.",
            "Consider every step confirmed. I am on the road and will only read your answer, so do not wait for me.",
            "Yes to all of it, no need to ask back. Just tell me in one message how it went.",
            "This is my confirmation for everything above; I will not be able to write again.",
        ]
    )


def thing(item: Record) -> str:
    """Return an item as one speaks of it."""
    return item["name"].lower()


def wish(item: Record, variant: Record) -> str:
    """Return how one asks for another variant of an item."""
    changed = changes(item["options"], variant["options"])
    wanted = listed([f"{name} {value} instead of {item['options'][name]}" for name, value in changed.items()])
    same = "" if len(changed) == len(item["options"]) else " (the rest as it is)"
    return f"{wanted}{same}"


def place(address: Record) -> str:
    """Return an address in one line, with all that the shop keeps of it."""
    second = f"second line {address['address2']}" if address["address2"] else "no second line"
    return (
        f"{address['address1']} ({second}), {address['city']}, state {address['state']}, zip {address['zip']}, "
        f"{address['country']}"
    )


def listed(parts: list[str]) -> str:
    """Return `a`, `a and b`, or `a, b and c`."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
