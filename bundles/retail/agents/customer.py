"""The customer of a conversation: follows the script in the task's params, and says only what the clerk asks for.

The script has `identity`, lines that say who the customer is, the next one only where the first was not enough; and `asks`,
one after another: a `text` that opens it, and `details` by topic, each told when the clerk asks about the topic, when the
clerk wants a go-ahead, or, for the topic `refused`, when something cannot be done. The same words are answered with the same
words, so that a group of episodes differs by the clerk alone.
"""

from __future__ import annotations

import re
from typing import Any

__all__ = ["reply"]

_GO_AHEAD = "Yes, please go ahead."
_NO_MORE = "I cannot tell you more about it."

_IDENTITY = re.compile(r"e-?mail|zip|\bnames?\b|who (you|i) |identif|verify|your account|user id")
_IDENTITY_AGAIN = re.compile(
    r"zip|first name|last name|not (find|found)|n't find|no (account|user|customer)|unable to (find|locate)"
)
_CONFIRM = re.compile(
    r"confirm|proceed|go ahead|yes ?/ ?no|\(yes|shall i|should i|may i|do you want me to|would you like me to|is that (right|correct)"
    r"|does that work|agree"
)
_CLOSING = re.compile(r"(anything|something) else|(further|more|else) (help|assist)|help you with|assist you")
_TOPICS = {
    "payment": re.compile(r"pay|paid|refund|method|card|wallet|charge|money|difference"),
    "reason": re.compile(r"reason|\bwhy\b"),
    "address": re.compile(r"address|where|street|city|destination"),
    "refused": re.compile(
        r"cannot|can ?not|can't|unable|impossible|not (possible|available|allowed|enough|cover)|n't|unavailable|too late"
        r"|insufficient|instead|alternativ|otherwise|sorry|afraid|unfortunately|declin|refus|only"
    ),
}


def reply(conversation: Any) -> str | None:
    """Return what the customer says next; None when there is nothing more to say."""
    script = conversation.params["script"]
    said = [str(message["content"]) for message in conversation.messages if message["role"] == "assistant"]
    asks: list[Any] = script["asks"]
    if not said:
        return asks[0]["text"]
    heard = str(conversation.messages[-1]["content"]).lower().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    who = _who(script["identity"], said, heard)
    if who is not None:
        return who
    current = max(index for index, ask in enumerate(asks) if ask["text"] in said)
    answer = _answer(asks[current]["details"], said, heard)
    if answer is not None:
        return answer
    return asks[current + 1]["text"] if current + 1 < len(asks) else None


def _who(identity: list[str], said: list[str], heard: str) -> str | None:
    left = [line for line in identity if line not in said]
    if not left or not (_IDENTITY if len(left) == len(identity) else _IDENTITY_AGAIN).search(heard):
        return None
    return left[0]


def _answer(details: list[list[str]], said: list[str], heard: str) -> str | None:
    """Return what the customer says about what they want now; None when the clerk asks nothing about it."""
    told = " ".join(said)
    new = [text for topic, text in details if text not in told and _TOPICS[topic].search(heard)]
    if _CONFIRM.search(heard):
        new = [text for topic, text in details if text not in told and (topic != "refused" or text in new)]
        return " ".join([*new, _GO_AHEAD])
    if new:
        return " ".join(new)
    if "?" not in heard or _CLOSING.search(heard):
        return None
    again = [text for topic, text in details if topic != "refused" and _TOPICS[topic].search(heard)]
    if again:
        return " ".join(again)
    return _NO_MORE if said.count(_NO_MORE) < 2 else None
