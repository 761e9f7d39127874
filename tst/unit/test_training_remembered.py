"""What is rendered once for many rollouts."""

from __future__ import annotations

from agent_env.training._remembered import Remembered, key_of

ANSWER = {"role": "tool", "name": "look", "content": "a lamp"}


def test_the_key_tells_messages_apart() -> None:
    """Texts, names and the order of messages count; messages of the same texts are the same."""
    others = [
        [{**ANSWER, "content": "a chair"}],
        [{**ANSWER, "name": "see"}],
        [ANSWER, ANSWER],
        [{"role": "tool"}, {"name": "look", "content": "a lamp"}],
        [],
    ]
    keys = [key_of(messages) for messages in [[ANSWER], *others]]
    assert len(set(keys)) == len(keys)
    assert key_of([dict(ANSWER)]) == keys[0]


def test_what_has_more_than_text_is_not_remembered() -> None:
    """An image is not told from another one by what it prints as."""
    known = Remembered[int]()
    key = key_of([ANSWER, {**ANSWER, "content": [{"type": "image", "image": object()}]}])
    known.put(key, 1, tokens=1)
    assert key is None
    assert known.get(key) is None


def test_what_nobody_has_asked_for_longest_is_forgotten_first() -> None:
    """The bound is of all values together; asking for one keeps it."""
    known = Remembered[str](most_tokens=10)
    known.put("a", "A", tokens=4)
    known.put("b", "B", tokens=4)
    assert known.get("a") == "A"
    known.put("c", "C", tokens=4)
    assert [known.get(key) for key in "abc"] == ["A", None, "C"]


def test_one_value_that_is_larger_than_the_bound_is_not_kept_and_costs_no_other() -> None:
    """It would throw out all the others."""
    known = Remembered[str](most_tokens=10)
    known.put("a", "A", tokens=4)
    known.put("b", "B", tokens=11)
    assert [known.get(key) for key in "ab"] == ["A", None]


def test_a_value_that_is_put_again_counts_once() -> None:
    """Two rollouts that render the same at the same time put it twice."""
    known = Remembered[str](most_tokens=10)
    for _ in range(5):
        known.put("a", "A", tokens=4)
    known.put("b", "B", tokens=6)
    assert [known.get(key) for key in "ab"] == ["A", "B"]
    known.clear()
    assert known.get("a") is None
