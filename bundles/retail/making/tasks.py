"""The tasks of one turn: each kind of case, with customers of its own for training and for testing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from random import Random

from making import kinds_delivered, kinds_other, kinds_pending
from making.case import Case, Unfit
from making.database import Record
from making.words import closing, introduction

__all__ = ["SPLITS", "MadeCase", "identity", "make_cases", "one_turn", "verify"]

SPLITS = {"train": 3, "test": 2}
"""Tasks of each kind by split."""

Kind = Callable[[Case], None]

_GREETINGS = ("Hello.", "Good morning.", "Hi there!", "Good evening.", "Dear support desk,")


class MadeCase:
    """A case that is one task of a split."""

    def __init__(self, case: Case, kind: str, split: str, number: int, tags: list[str]) -> None:
        self.case = case
        self.id = f"{kind}-{split}-{number}"
        self.number = number
        self.tags = tags
        self.seed = f"retail words {self.id}"


def make_cases(database: Record, split: str) -> Iterator[MadeCase]:
    """Return the cases of a split. No customer is in both."""
    people = list(database["users"].values())
    Random("retail split").shuffle(people)
    mine = people[: len(people) * 3 // 5] if split == "train" else people[len(people) * 3 // 5 :]
    used: Counter[str] = Counter()
    for group, name, kind in _kinds():
        random = Random(f"retail {split} {name}")
        random.shuffle(mine)
        mine.sort(key=lambda user: used[user["user_id"]])
        made = 0
        for user in list(mine):
            case = Case(database, user, random)
            try:
                kind(case)
            except Unfit:
                continue
            made += 1
            used[user["user_id"]] += 1
            tags = [split, group, name, *(["refuse"] if _refuses(case) else [])]
            yield MadeCase(case, name, split, made, tags)
            if made == SPLITS[split]:
                break
        else:
            raise RuntimeError(f"{name}: only {made} customers of {split} have such a case")


def one_turn(made: MadeCase) -> Record:
    """Return a case as a task in which the customer says everything at once, and nothing more."""
    case, random = made.case, Random(made.seed)
    lines, find = identity(case, random)
    said = [random.choice(_GREETINGS), *lines]
    for ask in case.asks:
        said += [ask.text, *(text for _, text in ask.details)]
    said.append(closing(random))
    calls = [*find, *(call for ask in case.asks for call in ask.calls)]
    reply = case.asks[-1].answer if len(case.asks) == 1 else " ".join(ask.answer for ask in case.asks)
    return {
        "id": made.id,
        "tags": made.tags,
        "params": {"user_id": case.user["user_id"]},
        "prompt": " ".join(said),
        "gold": [{"calls": calls, "reply": reply}],
        **verify(case),
    }


def verify(case: Case) -> Record:
    """Return what scores a case where the state that the right calls leave does not say all: the `verify` of a task."""
    check: Record = {}
    if case.must_call:
        check["called"] = [{"tool": tool} for tool in case.must_call]
    if case.said:
        check["said"] = case.said
    if not check:
        return {}
    return {
        "verify": [{"id": "db", "state": "store", "equals": "gold"}, {"id": "told", "check": check, "required": True}]
    }


def identity(case: Case, random: Random) -> tuple[list[str], list[Record]]:
    """Return how the customer says who they are, and how the clerk finds and reads their account."""
    user, name = case.user, case.user["name"]
    chance = random.randrange(100)
    by_name = {"tool": "find_user_id_by_name_zip", "arguments": {**name, "zip": user["address"]["zip"]}}
    read = {"tool": "get_user_details", "arguments": {"user_id": user["user_id"]}}
    if chance < 25:
        return introduction(user, random, email=None), [by_name, read]
    old = chance < 40
    email = f"{name['last_name'].lower()}.{name['first_name'].lower()}@mail.example" if old else user["email"]
    by_email = {"tool": "find_user_id_by_email", "arguments": {"email": email}}
    return introduction(user, random, email=email), [by_email, *([by_name] if old else []), read]


def _refuses(case: Case) -> bool:
    return any(topic == "refused" for ask in case.asks for topic, _ in ask.details) or any(
        not ask.calls for ask in case.asks[:1]
    )


def _kinds() -> Iterator[tuple[str, str, Kind]]:
    for module in (kinds_pending, kinds_delivered, kinds_other):
        group = module.__name__.rpartition("_")[2]
        for name in sorted(module.__all__):
            yield group, name.replace("_", "-"), getattr(module, name)
