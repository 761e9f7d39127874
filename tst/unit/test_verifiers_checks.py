"""Checks on the conversation: what counts as said, which calls are meant, and what an explanation names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_env import CallRecord, EpisodeView, Message
from agent_env.bundle import CallPattern, CheckVerifier
from agent_env.verify.checks import check_score
from agent_env.verify.phrase import Phrase, plain

View = Callable[..., EpisodeView]


def view(calls: Sequence[CallRecord] = (), said: Sequence[str] = (), **fields: Any) -> EpisodeView:
    """An episode in which the agent made these calls and said these things."""
    return EpisodeView(
        **{
            "task_id": "a",
            "params": {},
            "tags": (),
            "messages": [Message(role="assistant", content=text) for text in said],
            "replies": [],
            "calls": list(calls),
            "scores": {},
            "cut": None,
            "states": {},
            **fields,
        }
    )


def call(tool: str, *, is_error: bool = False, turn: int = 0, **arguments: Any) -> CallRecord:
    """One call that was made."""
    text = "no such order" if is_error else "done"
    return CallRecord(tool=tool, arguments=arguments, text=text, is_error=is_error, turn=turn)


def pattern(tool: str, **arguments: Any) -> CallPattern:
    """Calls that are meant."""
    return CallPattern(tool=tool, arguments=arguments)


@pytest.mark.parametrize(
    ("phrase", "text"),
    [
        ("camera", "Your CAMERA is on its way."),
        ("20 hours", "It lasts **20**\n   hours."),
        ("Chicago, IL", "chicago,  il 60621"),
        ("don't", "I don\u2019t know"),
        ("tactile", "a `tactile` switch"),
        ("white", "_white_ keys"),
        ("W2378156", "order #W2378156."),
        ("64GB", "the 64GB one"),
        ("c++", "in C++, mostly"),
        ("\uff12\uff10", "20"),
        ("environment", "the environ\u00adment"),
        ("\u74b0\u4fdd", "\u6211\u5011\u7684\u74b0\u4fdd\u68c9"),
        ("\ud658\ubd88", "\ud658\ubd88\uc744 \ud588\uc2b5\ub2c8\ub2e4"),
        ("v1.2", "it is v1.2"),
        ("2024-05-12", "on 2024\u201105\u201112."),
        ("12", "$12"),
        ("12", "12% of it"),
        ("12", "a 12kg box"),
        ("12", "It is 12."),
        ("12", "10-12 days"),
        ("12", "you owe -12"),
        ("12", "\u5171" + "12\u5143"),
        ("10", "10.00"),
        ("10.0", "10"),
        ("481.5", "$481.50"),
        ("481.50", "481.5"),
        ("1200.5", "**$1,200.50**,"),
        ("1,200", "1200"),
        ("1200", "1,200, I think"),
        ("100000", "1,00,000"),
        ("0.5", "half of it (.5)"),
        ("5", "No.5"),
        ("$5", "$5.00"),
        ("-5", "a balance of -$5"),
        ("-5", "\u22125 degrees"),
        ("007", "agent 007."),
    ],
)
def test_a_phrase_is_said(phrase: str, text: str) -> None:
    """As a reader would say: the form does not count, the words and numbers do."""
    assert check_score("s", CheckVerifier(said=(phrase,)), view(said=[text])).value == 1.0
    assert check_score("s", CheckVerifier(not_said=(phrase,)), view(said=[text])).value == 0.0


@pytest.mark.parametrize(
    ("phrase", "text"),
    [
        ("il", "it is available"),
        ("camera", "two cameras"),
        ("full", "carefully"),
        ("20 hours", "20 or 30 hours"),
        ("12", "120"),
        ("12", "212"),
        ("12", "1.12"),
        ("12", "12.5"),
        ("1", "1.2.3"),
        ("1.5", "3.1.5"),
        ("12", "A12"),
        ("3", "3a7f9"),
        ("1912", "zip 01912"),
        ("01912", "zip 1912"),
        ("5", "$.5"),
        ("-5", "5"),
        ("-5", "10-5"),
        ("-5", "- 5 apples"),
        ("200", "100,200"),
        ("200", "1,200"),
        ("10", "1,0"),
        ("0", "0.5"),
        ("$5", "5 euros"),
    ],
)
def test_a_phrase_is_not_said(phrase: str, text: str) -> None:
    """Part of a word or of a number is not it."""
    assert check_score("s", CheckVerifier(said=(phrase,)), view(said=[text])).value == 0.0
    assert check_score("s", CheckVerifier(not_said=(phrase,)), view(said=[text])).value == 1.0


@given(
    number=st.decimals(0, 10**9, places=2),
    before=st.sampled_from(["", "$", "it is ", "(", "**", "\n"]),
    after=st.sampled_from(["", ".", ", ok", "%", "**", " EUR", ")"]),
)
def test_any_amount_is_found_however_it_is_written(number: Any, before: str, after: str) -> None:
    """With commas or without, with zeros at its end or without."""
    for wanted in (f"{number}", f"{number:,}", f"{number.normalize():f}"):
        for written in (f"{number}", f"{number:,}", f"{number.normalize():f}"):
            assert Phrase(wanted).found_in(plain(f"{before}{written}{after}"))


@given(one=st.integers(0, 10**6), other=st.integers(0, 10**6))
def test_a_number_is_found_only_where_it_is_that_number(one: int, other: int) -> None:
    """Whatever digits they share."""
    assert bool(Phrase(str(one)).found_in(plain(f"it is {other:,}."))) == (one == other)


@given(phrase=st.text(max_size=20), text=st.text(max_size=60))
def test_any_text_can_be_looked_for(phrase: str, text: str) -> None:
    """A phrase with nothing in it is refused; every other one is found in itself."""
    try:
        found = Phrase(phrase)
    except ValueError:
        assert not plain(phrase).strip()
        return
    found.found_in(plain(text))
    assert found.found_in(plain(phrase))


def test_only_what_the_agent_says_counts() -> None:
    """Prompts, thoughts and answers of tools do not; what it says beside a call does, and a reply that was not recorded."""
    messages: list[Message] = [
        Message(role="user", content="red"),
        Message(
            role="assistant", content=[{"type": "thinking", "thinking": "green"}, {"type": "text", "text": "blue"}]
        ),
        Message(role="tool", content="black", name="look"),
        Message(role="assistant", content="white", tool_calls=[{"name": "look", "arguments": '{"colour": "pink"}'}]),
    ]
    check = CheckVerifier(said=("blue", "white", "grey"), not_said=("red", "green", "black", "pink"))
    assert check_score("s", check, view(messages=messages, replies=["grey", ""])).value == 1.0


def test_a_phrase_is_not_said_across_messages() -> None:
    """The end of one and the start of the next are no sentence."""
    assert check_score("s", CheckVerifier(said=("20 hours",)), view(said=["20", "hours"])).value == 0.0


@pytest.mark.parametrize(
    ("arguments", "fits"),
    [
        ({}, True),
        ({"order": "A1"}, True),
        ({"amount": 10}, True),
        ({"amount": 10.0}, True),
        ({"items": [{"id": "7", "count": 2.0}]}, True),
        ({"order": "A1", "gift": True}, True),
        ({"order": "a1"}, False),
        ({"amount": "10"}, False),
        ({"amount": True}, False),
        ({"gift": 1}, False),
        ({"items": [{"id": 7, "count": 2}]}, False),
        ({"items": [{"id": "7"}]}, False),
        ({"items": []}, False),
        ({"note": ""}, False),
        ({"none": None}, True),
        ({"none": 0}, False),
    ],
)
def test_arguments_are_compared_by_value(arguments: dict[str, Any], *, fits: bool) -> None:
    """Those that are named count; numbers are equal by value, and everything else is exact."""
    made = call("refund", order="A1", amount=10, gift=True, items=[{"id": "7", "count": 2}], none=None)
    verifier = CheckVerifier(called=(pattern("refund", **arguments),))
    assert check_score("s", verifier, view([made])).value == float(fits)
    verifier = CheckVerifier(not_called=(pattern("refund", **arguments),))
    assert check_score("s", verifier, view([made])).value == float(not fits)


def test_a_call_that_could_not_be_read_was_made() -> None:
    """It has no arguments that could be meant."""
    made = CallRecord(tool="refund", arguments=None, text="not JSON", is_error=True, turn=0)
    score = check_score("s", CheckVerifier(not_called=(pattern("refund"), pattern("refund", order="A1"))), view([made]))
    assert score.value == 0.5


def test_the_score_is_the_share_that_holds_and_every_other_check_is_named() -> None:
    """Each in a line, with what was done instead."""
    made = [
        call("refund", order="A1", turn=0),
        call("refund", order="A2", turn=1),
        call("cancel", order="A3", is_error=True, turn=1),
        call("mail", to="x" * 500, turn=2),
        call("mail", to="y", turn=3),
    ]
    verifier = CheckVerifier(
        called=(pattern("refund", order="A1"), pattern("refund", order="A9"), pattern("cancel"), pattern("close")),
        not_called=(pattern("mail"), pattern("close")),
        said=("refunded", "12.50"),
        not_said=("sorry", "gift card"),
    )
    score = check_score("s", verifier, view(made, ["I refunded it. " + "We are " * 20 + "so Sorry."]))
    assert score.value == 0.4
    assert score.metrics == {"checks": 10.0, "checks_held": 4.0}
    assert score.explanation.splitlines() == [
        'refund({"order": "A9"}) was not called, refund was with other arguments (2 times, last refund({"order": "A2"}))',
        "cancel was called, and refused: no such order",
        "close was not called",
        'mail({"to": "' + "x" * 191 + "…) was called (2 times, first in turn 2), which must not be",
        "'12.50' was not said",
        "'sorry' was said, which must not be: …e we are we are we are we are we are so sorry.",
    ]


def test_all_that_holds_needs_no_explanation() -> None:
    """The score is 1."""
    score = check_score("s", CheckVerifier(not_called=(pattern("mail"),)), view())
    assert (score.value, score.explanation) == (1.0, "")


@pytest.mark.parametrize(
    ("verifier", "said"),
    [
        (CheckVerifier(), "checks nothing: give it calls or phrases"),
        (CheckVerifier(said=(" ** ",)), "looks for ' ** ', but there is nothing to be said in it"),
    ],
)
def test_a_check_of_nothing_is_refused(verifier: CheckVerifier, said: str) -> None:
    """No score is made up for it."""
    with pytest.raises(ValueError) as caught:
        check_score("s", verifier, view(said=["x"]))
    assert str(caught.value) == said
