"""The tasks of several turns: the same cases, with a customer who says one thing at a time."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

from agents.customer import reply
from making.case import Ask
from making.database import Record
from making.tasks import MadeCase, identity, verify

__all__ = ["talk"]

_WHO = "I am glad to help. What is your email address, or else your name and zip code?"
_WHO_AGAIN = "I cannot find you by that address. What is your name, and your zip code?"
_MAY_I = "Is there anything that I have to know about it: a reason, an address, a payment method? May I go ahead then (yes/no)?"
_NOT_SO = "That cannot be done in just this way. What shall I do instead, and may I go ahead then (yes/no)?"
_TURNS = 20


@dataclass(frozen=True, slots=True)
class _Heard:
    params: Record
    messages: list[dict[str, Any]]


def talk(made: MadeCase) -> Record:
    """Return a case as a conversation that the customer leads."""
    case, random = made.case, Random(f"{made.seed} talk")
    lines, find = identity(case, random)
    asks = [{"text": ask.text, "details": [[topic, text] for topic, text in ask.details]} for ask in case.asks]
    params = {"user_id": case.user["user_id"], "script": {"identity": lines, "asks": asks}}
    split, *tags = made.tags
    return {
        "id": f"talk-{made.id}",
        "tags": [f"talk-{split}", *tags],
        "params": params,
        "prompt": {"by": "customer", "max_turns": _TURNS},
        "gold": _gold(params, case.asks, lines, find),
        **verify(case),
    }


def _gold(params: Record, asks: list[Ask], lines: list[str], find: list[Record]) -> list[Record]:
    """Talk with the customer as a good clerk does, and return what the clerk does in each turn."""
    turns: list[Record] = []
    messages: list[dict[str, Any]] = []
    current, asked = -1, False
    finding = list(find)
    for _ in range(_TURNS):
        said = reply(_Heard(params, messages))
        if said is None:
            return turns
        calls: list[Record] = []
        at = next((index for index, ask in enumerate(asks) if ask.text == said), current)
        if at == 0 and current < 0:
            answer = _WHO
        elif said in lines and finding[0]["tool"] == "find_user_id_by_email" and len(finding) == 3:
            calls, answer = [finding.pop(0)], _WHO_AGAIN
        else:
            calls, finding = finding, []
            more, answer, asked = _serve(asks[at], asked=asked and at == current)
            calls = [*calls, *more]
        current = at
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": answer}]
        turns.append({"calls": calls, "reply": answer})
    raise RuntimeError(f"the customer of {params['user_id']} does not come to an end")


def _serve(ask: Ask, *, asked: bool) -> tuple[list[Record], str, bool]:
    """Return the calls and the answer for what the customer wants, and whether the clerk waits for a go-ahead."""
    looks = [call for call in ask.calls if call["tool"].startswith("get_")]
    rest = [call for call in ask.calls if call not in looks]
    if asked:
        return rest, ask.answer, False
    if not ask.details and not any(
        call["tool"].startswith(("cancel", "modify", "return", "exchange")) for call in rest
    ):
        return ask.calls, ask.answer, False
    refused = any(topic == "refused" for topic, _ in ask.details)
    return looks, _NOT_SO if refused else _MAY_I, True
