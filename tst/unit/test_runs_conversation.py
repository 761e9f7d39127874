"""A run's events turned into what a reader sees."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent_env.runs import RunEvent
from agent_env.runs.conversation import Item, conversation, each_item, step_durations
from agent_env.runs.json_text import pretty


def _events(*events: tuple[str, Mapping[str, Any]]) -> list[RunEvent]:
    return [
        RunEvent(seq=seq, kind=kind, at_s=float(seq), step="prompt", turn=0, data=data)
        for seq, (kind, data) in enumerate(events)
    ]


ASKING = {
    "message": {"role": "assistant", "content": "", "tool_calls": [{"name": "a"}, {"name": "b", "arguments": "{}"}]}
}
CALL = ("call", {"call_id": "1", "tool": "a", "arguments": {}})


def test_a_call_and_its_answer_are_one_item() -> None:
    """Answers find their calls by id, also when they come in another order."""
    second = ("call", {"call_id": "2", "tool": "a", "arguments": {"x": 2}})
    answers = [("answer", {"call_id": call_id, "tool": "a", "text": f"to {call_id}"}) for call_id in ("2", "1")]
    items = conversation(_events(CALL, second, *answers), is_whole=True)
    assert [[section.text for section in item.sections] for item in items] == [["{}", "to 1"], ['{"x": 2}', "to 2"]]
    assert not any(section.is_folded for item in items for section in item.sections)


def test_a_call_that_was_asked_for_and_never_made_is_shown() -> None:
    """A message cut off before its second call says which call was not made."""
    items = conversation(_events(("message", ASKING), CALL, ("turn_ended", {"reply": None})), is_whole=True)
    assert [section.title for section in items[0].sections] == ["call not made: b"]


def test_a_call_that_could_not_be_read_is_shown_where_nothing_answers_it() -> None:
    """What the model wrote and what was wrong with it; an answered one stands with its answer."""
    message = {"role": "assistant", "content": "", "unreadable_calls": [{"raw": "{", "error": "it does not end"}]}
    told = ("message", {"message": {"role": "user", "content": "Again, please."}})
    items = conversation(_events(("message", {"message": message}), told), is_whole=True)
    (section,) = items[0].sections
    assert (section.title, section.text) == ("call that could not be read: it does not end", "{")
    refused = ("call", {"call_id": "1", "tool": "a", "arguments": None, "raw": "{"})
    items = conversation(_events(("message", {"message": message}), refused), is_whole=True)
    assert items[0].sections == ()


def test_a_call_that_may_still_come_is_not_called_not_made() -> None:
    """On a page that others follow, or in a run under way, nothing is said of calls not seen yet."""
    assert conversation(_events(("message", ASKING), CALL), is_whole=False)[0].sections == ()
    assert len(conversation(_events(("message", ASKING), CALL), is_whole=True)[0].sections) == 1


def test_a_reply_is_shown_once() -> None:
    """A reply that was a message already is not repeated; one that was not is shown."""
    said = ("message", {"message": {"role": "assistant", "content": "Done."}})
    ended = ("turn_ended", {"reply": "Done."})
    assert [item.text for item in conversation(_events(said, ended), is_whole=True)] == ["Done."]
    assert [item.text for item in conversation(_events(ended), is_whole=True)] == ["Done."]


def test_parts_of_a_message_are_text_thinking_and_the_rest() -> None:
    """Text parts are the message, thinking is folded, an unknown part is shown as it is."""
    parts = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "Yes."}, {"type": "image", "url": "u"}]
    (item,) = conversation(_events(("message", {"message": {"role": "assistant", "content": parts}})), is_whole=True)
    assert item.text == "Yes."
    assert [(section.title, section.is_folded) for section in item.sections] == [("thinking", True), ("image", True)]


def test_events_of_another_version_are_shown_as_they_are() -> None:
    """An unknown kind, and known ones without any of their data, stop nobody."""
    kinds = [
        "step_started",
        "step_ended",
        "turn_started",
        "message",
        "call",
        "answer",
        "turn_ended",
        "cut",
        "score",
        "failure",
        "dreamt",
    ]
    items = conversation(_events(*((kind, {}) for kind in kinds)), is_whole=True)
    assert items[-1].title == "dreamt"
    odd = conversation(_events(("message", {"message": "no mapping"}), ("turn_started", {"tools": 3})), is_whole=True)
    assert len(odd) == 2


def test_short_json_is_one_line_and_long_json_is_not() -> None:
    """What fits in a line is in one, at any depth."""
    assert pretty({"hours": [1, 2]}) == '{"hours": [1, 2]}'
    lines = pretty({"rows": [{"name": "x" * 60, "at": [1, 2, 3]}, {"name": "y" * 60}]}).splitlines()
    assert lines[2] == f'    {{"name": "{"x" * 60}", "at": [1, 2, 3]}},'


def test_what_an_agent_is_shown_is_said_again_only_where_it_has_changed() -> None:
    """A later prompt without its system prompt and tools has the ones before."""
    prompt = {"agent": "clerk", "system_prompt": "Be kind.", "prompt": "One.", "tools": [{"name": "a"}]}
    events = [
        ("turn_started", prompt),
        ("turn_started", prompt),
        ("turn_started", {**prompt, "system_prompt": "Be brief."}),
    ]
    items = conversation(_events(*events), is_whole=True)
    assert [[section.title for section in item.sections] for item in items] == [
        ["system prompt", "1 tool"],
        [],
        ["system prompt"],
    ]


def test_what_another_agent_says_to_the_played_one_is_one_item() -> None:
    """The line is the prompt: it is shown once, with who said it."""
    said = {"agent": "customer", "message": {"role": "assistant", "content": "A lamp."}, "model": "m"}
    prompt = {"agent": "clerk", "system_prompt": "", "prompt": "A lamp.", "tools": []}
    (item,) = conversation(_events(("agent_said", said), ("turn_started", prompt)), is_whole=True)
    assert (item.look, item.text, item.note) == ("prompt", "A lamp.", "by customer to clerk · m")


def test_a_call_says_in_a_line_what_it_was_and_came_to() -> None:
    """Its arguments by name, the first line of its answer, how long it took, and why it is an error."""
    call = ("call", {"call_id": "1", "tool": "lend", "arguments": {"book": "emma", "days": 3}})
    answer = {"call_id": "1", "text": "\n no\nmore", "is_error": True, "refusal": "no_such_tool", "duration_s": 0.5}
    (item,) = conversation(_events(call, ("answer", answer)), is_whole=True)
    assert (item.title, item.brief, item.said) == ("lend", 'book="emma", days=3', "no")
    assert (item.error_kind, item.duration_s, item.is_answered) == ("no such tool", 0.5, True)
    (waiting,) = conversation(_events(call), is_whole=False)
    assert not waiting.is_answered


def test_the_texts_of_an_event_have_names_of_their_own() -> None:
    """A text that is cut on a page is found again by its event and its name."""
    message = {
        "role": "assistant",
        "content": [{"type": "thinking", "thinking": "a"}, {"type": "thinking", "thinking": "b"}, {"type": "image"}],
        "tool_calls": [{"name": "x"}, {"name": "y"}],
        "unreadable_calls": [{"raw": "{"}, {"raw": "["}],
    }
    call = ("call", {"call_id": "1", "tool": "a", "arguments": {"x": 1}, "raw": '{"x": "1"}'})
    answer = ("answer", {"call_id": "1", "text": "t", "content": [{"type": "image"}], "traceback": "T"})
    items = conversation(_events(("message", {"message": message}), call, answer), is_whole=True)
    names = [(section.seq, section.name) for item in items for section in item.sections]
    assert len(set(names)) == len(names)
    assert {seq for seq, _ in names} == {0, 1, 2}
    assert [found.text for found in [items[1].section("raw"), items[1].section("answer")] if found] == [
        '{"x": "1"}',
        "t",
    ]


def test_changes_of_a_state_are_added_removed_or_changed() -> None:
    """Also in one line each, as the terminal prints them."""
    changes = [{"path": "/a/b~1c", "after": 1}, {"path": "/d", "before": [1]}, {"path": "", "before": 1, "after": 2}]
    (item,) = conversation(_events(("state", {"env": "store", "changes": changes, "left_out": 2})), is_whole=True)
    assert (item.title, item.note, item.left_out) == ("state of store", "5 changes", 2)
    assert [change.kind for change in item.changes] == ["added", "removed", "changed"]
    assert list(map(str, item.changes)) == ["+ /a/b~1c: 1", "- /d: [1]", "/: 1 → 2"]
    assert [change.segments for change in item.changes] == [("a", "b/c"), ("d",), ()]
    (untold,) = conversation(_events(("state", {"env": "store", "error": "a file is gone"})), is_whole=True)
    assert (untold.note, untold.text, untold.is_error) == ("what changed cannot be told", "a file is gone", True)


def test_a_message_has_its_number_and_its_tokens() -> None:
    """What a trainer counted; numbers that are none are left out."""
    events = [
        (
            "message",
            {"message": {"role": "assistant", "content": "a"}, "index": 3, "sampled_tokens": 9, "prompt_tokens": 5},
        ),
        ("message", {"message": {"role": "assistant", "content": "b"}, "index": "x", "sampled_tokens": True}),
    ]
    items = conversation(_events(*events), is_whole=True)
    assert [(item.message, item.prompt_tokens, item.sampled_tokens) for item in items] == [
        (3, 5, 9),
        (None, None, None),
    ]


def test_a_run_of_any_length_is_read_as_it_comes() -> None:
    """Few events are read ahead of what is told, and it is the same as if all had been read first."""
    told: list[tuple[str, Mapping[str, Any]]] = [("step_started", {"kind": "prompt"})]
    for number in range(1000):
        asks = {"role": "assistant", "content": "", "tool_calls": [{"name": "a"}, {"name": "b"}]}
        call = {"call_id": str(number), "tool": "a", "arguments": {"n": number}}
        told += [("message", {"message": asks}), ("call", call), ("answer", {**call, "text": f"to {number}"})]
    events = _events(*told, ("step_ended", {"duration_s": 2.5}))
    read: list[RunEvent] = []
    items: list[Item] = []
    for item in each_item((read.append(event) or event for event in events), durations={"prompt": 2.5}, is_whole=True):
        items.append(item)
        assert len(read) - item.seq < 200
    assert items == conversation(events, is_whole=True)
    assert items[0].duration_s == step_durations(events)["prompt"] == 2.5
    assert [section.text for section in items[-1].sections] == ['{"n": 999}', "to 999"]


def test_a_call_that_nothing_answers_does_not_hold_up_what_follows() -> None:
    """For long: an answer that comes after very much else is an item of its own."""
    between = [("score", {"value": 1.0})] * 2000
    events = _events(CALL, *between, ("answer", {"call_id": "1", "tool": "a", "text": "late"}))
    items = conversation(events, is_whole=True)
    assert (items[0].is_answered, items[-1].look, len(items)) == (False, "call", 2002)
    (soon, *_) = conversation(_events(CALL, *between[:100], ("answer", events[-1].data)), is_whole=True)
    assert soon.is_answered
