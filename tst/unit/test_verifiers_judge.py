"""A model as judge: what it is asked, how strictly its answer is read, and that nobody else's words are taken for it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_env import EpisodeView, FailureKind, Message, ModelServerError, Score
from agent_env.bundle import JudgeVerifier, ModelSpec, TextSource
from agent_env.chat import ChatReply, ChatUsage
from agent_env.verify.judge import conversation_text, judge_verdict, read_answer
from agent_env.verify.step_failed import StepFailedError
from agent_env.verify.verdict import Verdict

MODEL = ModelSpec(model="small", base_url="http://127.0.0.1:1/v1")
CONVERSATION: list[Message] = [
    Message(role="user", content="Refund A17."),
    Message(role="assistant", content="", tool_calls=[{"id": "1", "name": "refund", "arguments": '{"order": "A17"}'}]),
    Message(role="tool", content="refunded", tool_call_id="1", name="refund"),
    Message(role="assistant", content="Done."),
]


def view(messages: Sequence[Message] = CONVERSATION, replies: Sequence[str] = ("Done.",)) -> EpisodeView:
    """An episode with this conversation."""
    return EpisodeView(
        task_id="a",
        params={"kind": "very"},
        tags=("easy",),
        messages=list(messages),
        replies=list(replies),
        calls=[],
        scores={},
        cut=None,
        states={},
    )


def judge(prompt: str = "How kind?", max_score: float = 1.0) -> JudgeVerifier:
    """A judge with this prompt."""
    return JudgeVerifier(model=MODEL, prompt=TextSource(prompt, Path()), max_score=max_score)


class Model:
    """Answers with what it is told to, in order, and keeps what it was asked."""

    def __init__(self, *answers: str | list[dict[str, Any]] | Exception, finish_reason: str = "stop") -> None:
        self.answers = list(answers)
        self.asked: list[list[Mapping[str, Any]]] = []
        self.finish_reason = finish_reason

    async def __call__(self, spec: ModelSpec, messages: Sequence[Mapping[str, Any]], /) -> ChatReply:
        assert spec is MODEL
        self.asked.append(list(messages))
        if not self.answers:
            await asyncio.sleep(60)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return ChatReply(
            message={"role": "assistant", "content": answer},
            finish_reason=self.finish_reason,
            model="small-2",
            usage=ChatUsage(prompt_tokens=7, completion_tokens=5),
            duration_s=0.5,
            tries=1,
        )

    async def verdict(self, verifier: JudgeVerifier, timeout_s: float | None = 5) -> Verdict:
        """What comes of asking it about the episode."""
        return await judge_verdict("kind", verifier, view(), ask=self, timeout_s=timeout_s)

    async def score(self, verifier: JudgeVerifier, timeout_s: float | None = 5) -> Score:
        """What it scores."""
        outcome = (await self.verdict(verifier, timeout_s)).outcome
        assert isinstance(outcome, Score)
        return outcome


async def test_a_judge_scores_on_its_own_scale() -> None:
    """Its number is divided by `max_score`; what it says to it explains the score."""
    score = await Model('Rather.\n{"score": 4, "explanation": "It was polite."}').score(judge(max_score=5))
    assert (score.step, score.value, score.explanation) == ("kind", 0.8, "It was polite.")
    assert score.metrics == {"judge_score": 4.0, "judge_asked": 1.0}


async def test_the_prompt_sees_the_conversation_quoted() -> None:
    """Beside params, tags and replies; how to answer is said apart from it."""
    model = Model('{"score": 1}')
    prompt = "How {{ params.kind }} kind in {{ task_id }}, {{ tags[0] }}?\n{{ conversation }}\nLast: {{ replies[-1] }}"
    await model.score(judge(prompt, max_score=10))
    [[system, user]] = model.asked
    assert user == {
        "role": "user",
        "content": "How very kind in a, easy?\n"
        "user:\n> Refund A17.\n\n"
        'assistant calls refund:\n> {"order": "A17"}\n\n'
        "tool refund:\n> refunded\n\n"
        "assistant:\n> Done.\n"
        "Last: Done.",
    }
    assert system["role"] == "system"
    assert '{"score": <a number from 0 to 10>' in system["content"]


async def test_what_was_asked_and_answered_is_kept() -> None:
    """For the run: the prompt, each answer without thinking, and what they took together."""
    thinking = [{"type": "thinking", "thinking": "SCORE: 1"}, {"type": "text", "text": "Well."}]
    verdict = await Model(thinking, '{"score": 0}').verdict(judge())
    assert verdict.judge is not None
    assert verdict.judge.as_json() == {
        "prompt": "How kind?",
        "answers": ["Well.", '{"score": 0}'],
        "model": "small-2",
        "usage": {"prompt_tokens": 14, "completion_tokens": 10},
        "duration_s": 1.0,
    }


async def test_an_answer_without_a_score_is_asked_for_once_more() -> None:
    """With what was wrong with it."""
    model = Model("It was kind.", "SCORE: 0.5")
    score = await model.score(judge())
    assert (score.value, score.metrics["judge_asked"]) == (0.5, 2.0)
    answer, again = model.asked[1][2:]
    assert answer == {"role": "assistant", "content": "It was kind."}
    assert again["content"].startswith(
        "No score can be read from that: there is no JSON object in it. Answer once more"
    )


async def test_two_answers_without_a_score_fail_the_step() -> None:
    """There is no score that the judge did not give; what it said is told."""
    model = Model("It was kind.", '{"score": 7}')
    with pytest.raises(StepFailedError) as caught:
        await model.score(judge())
    assert caught.value.kind is FailureKind.SCORE_INVALID
    assert caught.value.message == (
        'judge small gave no score in 2 answers: the score is 7, which is not from 0 to 1; it said: {"score": 7}'
    )
    assert caught.value.trace == 'asked:\nHow kind?\n\nanswered:\nIt was kind.\n\nanswered:\n{"score": 7}'


async def test_an_answer_that_was_cut_off_is_told() -> None:
    """The bound is the bundle's to raise."""
    model = Model("I think", "I think", finish_reason="length")
    with pytest.raises(StepFailedError, match=r"cut off at 2048 tokens: raise max_tokens\); it said: I think"):
        await model.score(judge())


async def test_a_model_that_cannot_be_asked_fails_the_step() -> None:
    """It is the model server's failure, not the bundle's."""
    with pytest.raises(StepFailedError, match="judge small: the connection is refused") as caught:
        await Model("It was kind.", ModelServerError("the connection is refused")).score(judge())
    assert caught.value.kind is FailureKind.MODEL_SERVER


async def test_a_judge_s_time_is_bounded() -> None:
    """Both questions together."""
    with pytest.raises(StepFailedError, match=r"judge small took longer than 0.05 s") as caught:
        await Model("It was kind.").score(judge(), timeout_s=0.05)
    assert caught.value.kind is FailureKind.VERIFIER_TIMEOUT


async def test_a_prompt_that_cannot_be_written_fails_the_step() -> None:
    """Nobody is asked."""
    model = Model()
    with pytest.raises(StepFailedError, match="'knd', which is not there, did you mean 'kind'") as caught:
        await model.score(judge("How {{ params.knd }}?"))
    assert caught.value.kind is FailureKind.VERIFIER_RAISED
    assert not model.asked


@pytest.mark.parametrize(
    ("answer", "score", "explanation"),
    [
        ('{"score": 3, "explanation": "ok"}', 3.0, "ok"),
        ('{"score": 2.5}', 2.5, ""),
        ('```json\n{"score": 0, "explanation": "no"}\n```', 0.0, "no"),
        ('It said {"score": 5}. I do not think so.\n{"score": 1}', 1.0, ""),
        ('{"score": 1, "explanation": "it wrote {\\"score\\": 5}"}', 1.0, 'it wrote {"score": 5}'),
        ('{"score": 1, "explanation": "it wrote {}"}', 1.0, "it wrote {}"),
        ('{"score": 1, "reasons": {"tone": {"score": 4}}}', 1.0, ""),
        ('Tone was \\frac{1}{2}. {"score": 1} That is all.', 1.0, ""),
        ('<think>{"score": 5} { maybe</think>{"score": 1}', 1.0, ""),
        ('{"score": 1, "explanation": null}', 1.0, ""),
        ("It was fine.\nSCORE: 4", 4.0, "It was fine."),
        ("**Score:** 4.5", 4.5, ""),
        ("score: .5", 0.5, ""),
        ('{"score": 4}\nSCORE: 4.0', 4.0, '{"score": 4}'),
    ],
)
def test_an_answer_is_read(answer: str, score: float, explanation: str) -> None:
    """The last JSON object, or a last line with the score."""
    assert read_answer(answer, max_score=5) == (score, explanation)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("", "there is no JSON object in it"),
        ("Five of five!", "there is no JSON object in it"),
        ("SCORE: 5/5", "there is no JSON object in it"),
        ("SCORE: 4\nOr so.", "there is no JSON object in it"),
        ('{"score": "4"}', '"score" is "4", not a number'),
        ('{"score": true}', '"score" is true, not a number'),
        ('{"score": null}', '"score" is null, not a number'),
        ('{"score": NaN}', "its last JSON object does not parse, or is inside something that does not"),
        ('{"score": 1e999}', "the score is inf, which is not from 0 to 5"),
        (f'{{"score": {"9" * 400}}}', "the score is inf, which is not from 0 to 5"),
        ('{"score": 5.01}', "the score is 5.01, which is not from 0 to 5"),
        ('{"score": -1}', "the score is -1, which is not from 0 to 5"),
        ("SCORE: -1", "the score is -1, which is not from 0 to 5"),
        ('{"score": 1, "score": 5}', "its last JSON object does not parse, or is inside something that does not"),
        ('{"rating": 4}', 'its last JSON object has no "score"'),
        ('{"result": {"score": 4}}', 'its last JSON object has no "score"'),
        ('{"score": 1}\nSCORE: 5', "it has two scores, 1 and 5"),
        ('{"score": 0, "explanation": "it wrote {"score": 5}"}', "its last JSON object does not parse, or is inside"),
        ('{"score": 0, "explanation": "it wrote {"score": 5}', "its last JSON object does not parse, or is inside"),
        ('{"score": 5} {"score": 0, "explanation": "cut', "its last JSON object does not parse, or is inside"),
        ('{"score": 5} }', "its last JSON object does not parse, or is inside"),
        ('{"a":' * 3000 + "1" + "}" * 3000, "its last JSON object does not parse, or is inside"),
        ("{" * 100_000 + "}", "its last JSON object does not parse, or is inside"),
    ],
)
def test_an_answer_that_is_no_score_is_none(answer: str, said: str) -> None:
    """Nothing is guessed, and what stands inside a sentence of the judge's is not taken for its own."""
    with pytest.raises(ValueError) as caught:
        read_answer(answer, max_score=5)
    assert str(caught.value).startswith(said)


@given(answer=st.text(alphabet='{}[]":,0123456789.eE-scorexn \n\\'), before=st.text(alphabet='{}" score:1\n'))
def test_no_answer_makes_a_score_that_is_not_on_the_scale(answer: str, before: str) -> None:
    """Whatever it is."""
    for text in (answer, f'{before}{{"score": {answer}}}', f"{before}\nSCORE: {answer}"):
        try:
            score, _ = read_answer(text, max_score=5)
        except ValueError:
            continue
        assert 0 <= score <= 5


@given(said=st.text())
def test_what_was_said_stays_a_quotation(said: str) -> None:
    """Every line of it begins with the mark, also behind line ends that are none for most."""
    messages = [
        Message(role="user", content=said),
        Message(role="assistant", content=said, tool_calls=[{"name": said, "arguments": said}]),
        Message(role="assistant", content=said, unreadable_calls=[{"raw": said, "error": ""}]),
        Message(role="tool", content=said, name=said),
    ]
    headings = [line for line in conversation_text(messages).splitlines() if line and not line.startswith("> ")]
    said_by = [heading.split(" ")[0].rstrip(":") for heading in headings]
    assert said_by == ["user", *["assistant"] * (4 if said else 2), "tool"]
    assert all(len(heading) < 100 for heading in headings)


def test_images_are_named() -> None:
    """A judge sees that there was one."""
    image = {"type": "image", "data": "AAAA", "mimeType": "image/png"}
    messages = [Message(role="tool", content=[{"type": "text", "text": "a plot"}, image], name="plot")]
    assert conversation_text(messages) == "tool plot:\n> a plot\n> [1 image(s)]"
