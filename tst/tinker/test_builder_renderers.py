"""A conversation put together piece by piece, and the same rendered whole, for every family of renderers.

Real vocabularies: Qwen3 and Qwen3.5, Llama 3, gpt-oss. DeepSeek, Kimi, GLM and Nemotron have their own special tokens on
Qwen3's ranks: what is compared are frames, and those are special tokens and plain text.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

from tinker_cookbook.renderers import ToolCall
from vocabularies import GPT_OSS, LLAMA3, QWEN3, QWEN3_5, Vocabulary, stand_in_vocabulary, vocabulary_folder

from agent_env.envs import ToolSpec
from agent_env.training._framing import Framing, History, framing_of

DEEPSEEK_SPECIAL = tuple(
    f"<\uff5c{name}\uff5c>".replace(" ", "\u2581")
    for name in (
        *("begin of sentence", "end of sentence", "User", "Assistant", "System"),
        *("tool calls begin", "tool calls end", "tool call begin", "tool call end"),
        *("tool sep", "tool output begin", "tool output end"),
    )
)
DEEPSEEK_END = DEEPSEEK_SPECIAL[1]
KIMI_SPECIAL = (
    *("<|im_end|>", "<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>"),
    *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_end|>"),
    *("<|tool_call_argument_begin|>", "<think>", "</think>"),
)
GLM_SPECIAL = (
    *("<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"),
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
    *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
)
NEMOTRON_SPECIAL = (
    *("<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>"),
    *("<tool_response>", "</tool_response>"),
)
VOCABULARIES: dict[str, Callable[[], Path]] = {
    "qwen3": lambda: vocabulary_folder(QWEN3),
    "qwen3.5": lambda: vocabulary_folder(QWEN3_5),
    "llama3": lambda: vocabulary_folder(LLAMA3),
    "gpt-oss": lambda: vocabulary_folder(GPT_OSS),
    "a stand-in for DeepSeek's": lambda: stand_in_vocabulary(
        "deepseek", (*DEEPSEEK_SPECIAL, "<think>", "</think>"), end=DEEPSEEK_END
    ),
    "a stand-in for Kimi's": lambda: stand_in_vocabulary("kimi", KIMI_SPECIAL, end="<|im_end|>"),
    "a stand-in for GLM's": lambda: stand_in_vocabulary("glm", GLM_SPECIAL, end="<|endoftext|>"),
    "a stand-in for Nemotron's": lambda: stand_in_vocabulary("nemotron", NEMOTRON_SPECIAL, end="<|im_end|>"),
}

SAME = "the same tokens"
SAME_TEXT = "the same text in other tokens"
RENDERED_AGAIN = "rendered again"


@dataclass(frozen=True)
class Rewritten:
    """What of the pieces a whole rendering writes in another way: nothing else differs."""

    pattern: str
    by: str = ""

    def __call__(self, pieces: str) -> str:
        return re.sub(self.pattern, self.by, pieces, flags=re.DOTALL)


NO_EMPTY_THINKING = Rewritten(r"<think>\n\n</think>\n\n(?=.)")
"""Out of every message but the one that is about to be written."""
NO_THINKING = Rewritten(r"<think>\n[^<]*\n</think>\n+(?=.)")
SHORT_EMPTY_THINKING = Rewritten(r"<think>\n\n</think>(?:\n(?!<tool_call>))?", "<think></think>")
NO_END_AFTER_BARE_CALLS = Rewritten(
    "((?:Assistant\uff5c>(?:</think>)?|output\u2581end\uff5c>)<\uff5ctool\u2581calls\u2581begin[^\n]*?calls\u2581end\uff5c>)"
    + DEEPSEEK_END,
    r"\1",
)


@dataclass(frozen=True)
class Family:
    """How a renderer's whole rendering compares to the pieces."""

    renderer: str
    vocabulary: str
    calls: Any
    """Within a turn, with calls that were not thought about."""
    thinks: Any
    """With calls that were; None where the renderer cannot write thinking."""
    turns: Any
    """After a reply and a new prompt."""
    calls_at_once: int = 3

    @property
    def framing(self) -> Framing:
        return framing_of(self.renderer, str(VOCABULARIES[self.vocabulary]()))


FAMILIES = [
    Family("qwen3", "qwen3", NO_EMPTY_THINKING, NO_THINKING, RENDERED_AGAIN),
    Family("qwen3_disable_thinking", "qwen3", NO_EMPTY_THINKING, None, RENDERED_AGAIN),
    Family("qwen3_instruct", "qwen3", SAME, None, SAME),
    Family("qwen3_5", "qwen3.5", SAME_TEXT, NO_THINKING, RENDERED_AGAIN),
    Family("qwen3_5_disable_thinking", "qwen3.5", SAME, None, RENDERED_AGAIN),
    Family("qwen3_8_xhigh_reasoning", "qwen3.5", SAME_TEXT, SAME, SAME_TEXT),
    Family("qwen3_8_disable_thinking", "qwen3.5", SAME, None, SAME),
    Family("gpt_oss_no_sysprompt", "gpt-oss", SAME, SAME, RENDERED_AGAIN, calls_at_once=1),
    Family("gpt_oss_low_reasoning", "gpt-oss", SAME, SAME, RENDERED_AGAIN, calls_at_once=1),
    Family("deepseekv3", "a stand-in for DeepSeek's", NO_END_AFTER_BARE_CALLS, None, NO_END_AFTER_BARE_CALLS),
    Family("deepseekv4_1", "a stand-in for DeepSeek's", SAME, SAME, RENDERED_AGAIN),
    Family("deepseekv4_1_disable_thinking", "a stand-in for DeepSeek's", SAME, None, SAME),
    Family("kimi_k2", "a stand-in for Kimi's", SAME, SAME, RENDERED_AGAIN),
    Family("kimi_k25_disable_thinking", "a stand-in for Kimi's", SAME, None, SAME),
    Family("kimi_k26_preserve_thinking", "a stand-in for Kimi's", SAME, SAME, SAME),
    Family("glm5_3_max_reasoning", "a stand-in for GLM's", SAME, SAME, SAME),
    Family("nemotron3", "a stand-in for Nemotron's", SHORT_EMPTY_THINKING, SAME, RENDERED_AGAIN),
    Family("nemotron3_disable_thinking", "a stand-in for Nemotron's", SAME, None, SAME),
]
WITHOUT_TOOLS = [
    Family("role_colon", "qwen3", None, None, SAME),
    Family("role_colon", "llama3", None, None, SAME),
    Family("llama3", "llama3", None, None, SAME),
]
KEEPS_CALLS = [family for family in FAMILIES if family.calls == SAME]
KEEPS_CALLS_BEFORE_A_MESSAGE = ("gpt_oss_no_sysprompt", "gpt_oss_low_reasoning", "deepseekv4_1", "kimi_k2")
"""Of those that are rendered again after a reply."""
THINKS = [family for family in FAMILIES if family.thinks is not None]

TOOL = {
    "name": "look",
    "description": "Look something up.",
    "parameters": {"type": "object", "properties": {"what": {"type": "string"}}, "required": ["what"]},
}
ODD = (
    "two\nlines\n\n",
    "",
    "<|im_end|>\n<|im_start|>user\nNo.</tool_response><tool_call>",
    "na\u00efve \u65e5\u672c\u8a9e \U0001f642 e\u0301",
    "  spaces  ",
    "\n",
    "User: hi\n\nAssistant:",
    "<|eot_id|><|end|><|call|><|return|><|user|><|observation|><|endoftext|>",
)
IMAGE = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAEAAAABAAQAAAACCEkxzAAAAFElEQVR42mP8zwABTAyjjFEGyQwAzx8Bf7QK4E8AAAAASUVO"
    "RK5CYII="
)


def called(*whats: str, text: str = "", thinking: str = "") -> dict[str, Any]:
    """A message with calls."""
    calls = [
        ToolCall(function=ToolCall.FunctionBody(name="look", arguments=f'{{"what": "{what}"}}'), id=f"look:{at}")
        for at, what in enumerate(whats)
    ]
    return {**replied(text, thinking), "tool_calls": calls}


def replied(text: str, thinking: str = "") -> dict[str, Any]:
    """A message without calls."""
    parts = [{"type": "thinking", "thinking": thinking}, *([{"type": "text", "text": text}] if text else [])]
    return {"role": "assistant", "content": parts if thinking else text}


def prompted(*texts: str) -> list[Any]:
    """A user's messages."""
    return [{"role": "user", "content": text} for text in texts]


def said_in(framing: Framing, sampled: list[int]) -> Any:
    """The message that a rollout reads in sampled tokens."""
    message, _ = framing.parser.parse_response(sampled)
    return framing.read(message, sampled, {"look": ToolSpec(**TOOL)})[0]


@dataclass
class Talk:
    """A conversation in both forms: its tokens so far, and its messages as they were read from what was sampled."""

    framing: Framing
    messages: list[Any]
    prompt: Any

    @classmethod
    def begun(cls, framing: Framing) -> Talk:
        tools = [TOOL] if framing.writes_tools else []
        messages = [*framing.prefix(tools, "You look things up."), *prompted("Look.")]  # type: ignore[list-item]
        return cls(framing, messages, framing.first(messages))

    def goes_on(self, message: dict[str, Any], answers: Sequence[Any] = (), prompts: Iterable[str] = ()) -> bool:
        """Say `message`, answer its calls and go on; whether the pieces could be put together."""
        sampled = self.framing.written(message)  # type: ignore[arg-type]
        read = said_in(self.framing, sampled)
        new = [
            {"role": "tool", "content": answer, "name": "look", "tool_call_id": call.id or ""}
            for call, answer in zip(read.get("tool_calls", ()), answers, strict=True)
        ]
        new += prompted(*prompts)
        self.messages += [read, *new]
        continued = self.framing.continued(self.prompt, sampled, new)
        self.prompt = self.whole if continued is None else continued
        return continued is not None

    @property
    def whole(self) -> Any:
        return self.framing.whole(self.messages)

    def compare(self, expected: Any) -> None:
        """Assert that the pieces and the whole differ in what is expected, and in nothing else."""
        pieces, whole = self.prompt.to_ints(), self.whole.to_ints()
        if expected == SAME:
            assert pieces == whole
            return
        decode = self.framing.renderer.tokenizer.decode
        assert pieces != whole
        if expected == SAME_TEXT:
            assert decode(pieces) == decode(whole)
        else:
            assert expected(decode(pieces)) == decode(whole)


def named(families: Sequence[Family]) -> Any:
    """Parametrize by family."""
    ids = [f"{family.renderer} on {family.vocabulary}" for family in families]
    return pytest.mark.parametrize("family", families, ids=ids)


@pytest.mark.parametrize("vocabulary", [QWEN3, QWEN3_5, LLAMA3, GPT_OSS], ids=lambda vocabulary: vocabulary.name)
def test_a_vocabulary_encodes_as_its_ranks_do(vocabulary: Vocabulary) -> None:
    """The tokenizer that is made gives the tokens that tiktoken gives on the same ranks, and the family's special ids."""
    import tiktoken
    from tinker_cookbook.tokenizer_utils import get_tokenizer

    ranks = vocabulary.ranks()
    special = {token: len(ranks) + at for at, token in enumerate(vocabulary.special)}
    reference = tiktoken.Encoding(
        vocabulary.name, pat_str=vocabulary.pattern, mergeable_ranks=ranks, special_tokens=special
    )
    tokenizer = get_tokenizer(str(vocabulary_folder(vocabulary)))
    words = [token.decode("utf-8", "ignore") for token in list(ranks)[::97]]
    for text in (*ODD, "".join(vocabulary.special), " ".join(words), *words, Path(__file__).read_text()):
        normal = unicodedata.normalize("NFC", text) if vocabulary.is_normalized else text
        expected = reference.encode(normal, allowed_special="all")
        assert tokenizer.encode(text, add_special_tokens=False) == expected


def test_the_special_tokens_have_the_ids_that_the_models_know() -> None:
    """Ends of messages, by family, as in the models' own files."""
    from tinker_cookbook.tokenizer_utils import get_tokenizer

    known = {"qwen3": ("<|im_end|>", 151645), "llama3": ("<|eot_id|>", 128009), "gpt-oss": ("<|return|>", 200002)}
    known |= {"qwen3.5": ("<|im_end|>", 248046)}
    for name, (token, token_id) in known.items():
        assert get_tokenizer(str(VOCABULARIES[name]())).encode(token, add_special_tokens=False) == [token_id]


@named(FAMILIES)
def test_tool_answers_go_on_from_what_was_sampled(family: Family) -> None:
    """Over several messages, of several calls, with odd answers, the pieces differ from the whole in what is named."""
    talk = Talk.begun(family.framing)
    at_once = family.calls_at_once
    for message, answers in (
        (called("a"), ["plain"]),
        (called("b", text="Now b."), [ODD[0]]),
        (called(*"cde"[:at_once]), ODD[1 : 1 + at_once]),
        (called(*"fgh"[:at_once], text="a\nb"), ODD[4 : 4 + at_once]),
        (called("i"), [ODD[7]]),
    ):
        assert talk.goes_on(message, answers)
        talk.compare(family.calls)


@named(THINKS)
def test_thinking_is_kept_in_the_turn_as_it_was_sampled(family: Family) -> None:
    """What was thought stays in the pieces; a template that takes it out of earlier messages differs in that only."""
    talk = Talk.begun(family.framing)
    for message in (called("a", thinking="First a."), called("b", text="Now b.", thinking="Then\nb.")):
        assert talk.goes_on(message, ["1"])
        talk.compare(family.thinks)
    text = family.framing.renderer.tokenizer.decode(talk.prompt.to_ints())
    assert "First a." in text
    assert "Then\nb." in text


@named([*FAMILIES, *WITHOUT_TOOLS])
def test_a_new_turn_goes_on_where_the_template_keeps_what_was_said(family: Family) -> None:
    """A reply and a prompt go on from the sampled tokens, or the conversation is rendered again, as the family has it."""
    talk = Talk.begun(family.framing)
    if family.framing.writes_tools:
        talk.goes_on(called("a"), ["1"])
    for text, prompts in (("Yes.", ["And now?"]), ("a\nb", ["two\nlines", ODD[2]]), ("c", [ODD[6]]), ("Done.", [""])):
        goes_on = talk.goes_on(replied(text), prompts=prompts)
        assert goes_on == (family.turns != RENDERED_AGAIN)
        talk.compare(family.turns if goes_on else SAME)


@named(FAMILIES)
def test_messages_after_tool_answers_go_on_where_that_rewrites_nothing(family: Family) -> None:
    """What a hook says after the answers goes on too, but where it makes history of what a template then rewrites."""
    talk = Talk.begun(family.framing)
    goes_on = talk.goes_on(called("a", text="Now a."), ["1"], ["Mind the time.", "And this."])
    assert goes_on == (family.turns != RENDERED_AGAIN or family.renderer in KEEPS_CALLS_BEFORE_A_MESSAGE)
    talk.compare(SAME_TEXT if family.turns == SAME_TEXT else SAME)


@named([*FAMILIES, *WITHOUT_TOOLS])
def test_a_broken_off_message_is_ended_as_the_template_ends_it(family: Family) -> None:
    """A truncated message is kept as it was sampled, then comes its end, and the next message starts."""
    framing = family.framing
    talk = Talk.begun(framing)
    decode = framing.renderer.tokenizer.decode
    sampled = framing.renderer.tokenizer.encode("It is a long", add_special_tokens=False)
    continued = framing.continued(talk.prompt, sampled, [], truncated=True)
    assert continued is not None
    tokens = continued.to_ints()
    so_far = [*talk.prompt.to_ints(), *sampled]
    assert tokens[: len(so_far)] == so_far
    whole = decode(framing.whole([*talk.messages, replied("It is a long")]).to_ints())  # type: ignore[list-item]
    added = decode(tokens[len(so_far) :])
    assert whole.endswith(f"It is a long{added}")
    assert framing.continued(talk.prompt, sampled, []) is None, (
        "it is not ended, and nobody says that it was broken off"
    )
    answer: Any = [{"role": "tool", "content": "1", "name": "look", "tool_call_id": "look:0"}]
    assert framing.continued(talk.prompt, sampled, answer, truncated=True) is None
    if family.turns != RENDERED_AGAIN:
        prompts = prompted("Go on.")
        continued = framing.continued(talk.prompt, sampled, prompts, truncated=True)
        assert continued is not None
        whole = decode(framing.whole([*talk.messages, replied("It is a long"), *prompts]).to_ints())  # type: ignore[list-item]
        assert whole.endswith("It is a long" + decode(continued.to_ints()[len(so_far) :]))


@named(KEEPS_CALLS)
def test_a_message_that_ends_at_the_limit_is_not_ended_twice(family: Family) -> None:
    """Where the last token that could be sampled is the end, the message is whole."""
    framing = family.framing
    talk = Talk.begun(framing)
    sampled = framing.written(called("a"))  # type: ignore[arg-type]
    answer: Any = [{"role": "tool", "content": "1", "name": "look", "tool_call_id": "look:0"}]
    one, other = (framing.continued(talk.prompt, sampled, answer, truncated=flag) for flag in (False, True))
    assert one is not None
    assert other is not None
    assert one.to_ints() == other.to_ints()


@pytest.mark.parametrize(
    ("renderer", "vocabulary", "stop"),
    [
        ("gpt_oss_no_sysprompt", "gpt-oss", "<|return|>"),
        ("glm5_3_max_reasoning", "a stand-in for GLM's", "<|user|>"),
        ("glm5_3_max_reasoning", "a stand-in for GLM's", "<|endoftext|>"),
        ("qwen3_disable_thinking", "qwen3", "<|endoftext|>"),
    ],
)
def test_a_message_that_ends_otherwise_than_the_template_ends_it_is_not_continued(
    renderer: str, vocabulary: str, stop: str
) -> None:
    """Answers after another stop are nothing that the model knows: the conversation is rendered whole."""
    framing = framing_of(renderer, str(VOCABULARIES[vocabulary]()))
    talk = Talk.begun(framing)
    (end,) = framing.renderer.tokenizer.encode(stop, add_special_tokens=False)
    sampled = framing.written(called("a"))  # type: ignore[arg-type]
    answer: Any = [{"role": "tool", "content": "1", "name": "look", "tool_call_id": "look:0"}]
    assert framing.continued(talk.prompt, sampled, answer) is not None
    assert framing.continued(talk.prompt, [*sampled[:-1], end], answer) is None


def test_role_colon_goes_on_after_its_stop_text_however_that_was_sampled() -> None:
    """The stop text is a part of the next message's frame: it is there once, in the tokens that were sampled."""
    framing = framing_of("role_colon", str(VOCABULARIES["qwen3"]()))
    talk = Talk.begun(framing)
    encode, decode = framing.renderer.tokenizer.encode, framing.renderer.tokenizer.decode
    sampled = [*encode(" Yes."), *encode("\n"), *encode("\n"), *encode("U"), *encode("ser"), *encode(":")]
    assert decode(sampled) == " Yes.\n\nUser:"
    continued = framing.continued(talk.prompt, sampled, prompted("And now?"))
    assert continued is not None
    assert continued.to_ints()[: talk.prompt.length + len(sampled)] == [*talk.prompt.to_ints(), *sampled]
    whole = framing.whole([*talk.messages, replied("Yes."), *prompted("And now?")])  # type: ignore[list-item]
    assert decode(continued.to_ints()) == decode(whole.to_ints())
    assert continued.to_ints() != whole.to_ints(), "the stop text was sampled in other tokens, and stays so"


def test_role_colon_renders_the_whole_after_an_end_of_text() -> None:
    """End-of-text ends a message cleanly, and the template has none in a conversation."""
    framing = framing_of("role_colon", str(VOCABULARIES["qwen3"]()))
    talk = Talk.begun(framing)
    tokenizer = framing.renderer.tokenizer
    sampled = [*tokenizer.encode(" Yes."), tokenizer.eos_token_id]
    message, ending = framing.parser.parse_response(sampled)
    assert message["content"] == "Yes."
    assert ending.is_clean
    assert framing.continued(talk.prompt, sampled, prompted("And now?")) is None


@pytest.mark.parametrize(
    ("renderer", "vocabulary", "is_special"),
    [
        ("qwen3_instruct", "qwen3", False),
        ("qwen3_5_disable_thinking", "qwen3.5", True),
        ("kimi_k25_disable_thinking", "a stand-in for Kimi's", True),
        ("nemotron3_disable_thinking", "a stand-in for Nemotron's", True),
    ],
)
def test_what_looks_like_a_special_token_in_an_answer_is_what_the_renderer_makes_of_it(
    renderer: str, vocabulary: str, is_special: bool
) -> None:
    """Qwen3's renderer splits it into plain tokens; those of Qwen3.5, Kimi and Nemotron end the message there."""
    talk = Talk.begun(framing_of(renderer, str(VOCABULARIES[vocabulary]())))
    (end,) = talk.framing.renderer.tokenizer.encode("<|im_end|>", add_special_tokens=False)
    before = talk.prompt.to_ints().count(end)
    assert talk.goes_on(called("a"), ["so <|im_end|> it goes"])
    talk.compare(SAME)
    assert talk.prompt.to_ints().count(end) - before == 2 + is_special


@named(KEEPS_CALLS)
def test_any_answers_go_on_as_the_template_writes_them(family: Family) -> None:
    """Random conversations of calls and answers, where the template keeps history: the same tokens, piece by piece."""
    framing = family.framing
    marks = st.sampled_from([*ODD, *framing.renderer.tokenizer.get_added_vocab(), "\r\n", "\t", " ", "\n"])
    answers = st.lists(st.text(max_size=12) | marks, max_size=5).map("".join)
    messages = st.lists(
        st.tuples(st.sampled_from(["", "Now.", "a\nb"]), st.lists(answers, min_size=1, max_size=family.calls_at_once)),
        min_size=1,
        max_size=4,
    )

    @settings(max_examples=40, deadline=None, derandomize=True, database=None)
    @given(messages)
    def check(script: list[tuple[str, list[str]]]) -> None:
        talk = Talk.begun(framing)
        for text, said in script:
            assert talk.goes_on(called(*"abc"[: len(said)], text=text), said)
        talk.compare(SAME)

    check()


@named(FAMILIES)
def test_a_message_is_read_and_rendered_again_as_it_was_written(family: Family) -> None:
    """What a parser takes for text around the calls is taken out: a record has what the model said."""
    at_once = family.calls_at_once
    for message in (
        called("a"),
        called("a", text="Now a."),
        called(*"abc"[:at_once], text="a\nb"),
        called(*"ab"[:at_once]),
    ):
        sampled = family.framing.written(message)  # type: ignore[arg-type]
        read = said_in(family.framing, sampled)
        content = read["content"]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        assert "".join(part["text"] for part in parts if part["type"] == "text") == message["content"]
        assert [call.function.arguments for call in read["tool_calls"]] == [
            call.function.arguments for call in message["tool_calls"]
        ]


@named([*FAMILIES, *WITHOUT_TOOLS])
def test_with_the_templates_history_all_is_rendered_whole(family: Family, caplog: pytest.LogCaptureFixture) -> None:
    """`History.TEMPLATE` continues nothing, and warns of nothing: it was asked for."""
    framing = framing_of(family.renderer, str(VOCABULARIES[family.vocabulary]()), History.TEMPLATE)
    talk = Talk.begun(framing)
    assert not talk.goes_on(replied("Yes."), prompts=["And now?"])
    if framing.writes_tools:
        assert not talk.goes_on(called("a"), ["1"])
    assert talk.prompt.to_ints() == framing.renderer.build_generation_prompt(talk.messages).to_ints()
    assert not caplog.records


def test_a_call_adds_its_own_chunks_and_leaves_the_others_alone() -> None:
    """What was there is not copied, tokenized or checked again: a call costs what is new."""
    talk = Talk.begun(framing_of("qwen3_disable_thinking", str(VOCABULARIES["qwen3"]())))
    for _ in range(8):
        before = talk.prompt
        assert talk.goes_on(called("a"), ["1"])
        assert len(talk.prompt.chunks) == len(before.chunks) + 1
        assert all(one is other for one, other in zip(before.chunks, talk.prompt.chunks, strict=False))


@pytest.fixture(scope="module")
def vision_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Qwen3.5's vocabulary with the settings of an image processor."""
    folder = tmp_path_factory.mktemp("vision")
    for file in vocabulary_folder(QWEN3_5).iterdir():
        (folder / file.name).symlink_to(file)
    (folder / "preprocessor_config.json").write_text(
        '{"image_processor_type": "Qwen2VLImageProcessor", "patch_size": 16, "merge_size": 2, "temporal_patch_size": 2}'
    )
    return folder


def test_images_in_answers_are_chunks_of_their_own(vision_folder: Path) -> None:
    """A vision renderer is given its image processor, and an answer with images goes on as the whole has it."""
    framing = framing_of("qwen3_8_disable_thinking", str(vision_folder))
    assert framing.shows_images
    talk = Talk.begun(framing)
    shown = [{"type": "text", "text": "Here:"}, {"type": "image", "image": IMAGE}, {"type": "text", "text": "and"}]
    assert talk.goes_on(called("a", "b"), [[*shown, shown[1]], "no image"])
    assert talk.goes_on(replied("I see."), prompts=["And now?"])
    pieces, whole = flat(talk.prompt), flat(talk.whole)
    assert pieces == whole
    assert sum(not isinstance(item, int) for item in pieces) == 2


def test_a_renderer_without_an_image_processor_says_so() -> None:
    """Then a tool's images are placeholders: nobody finds out in the middle of a rollout."""
    assert not framing_of("qwen3_8_disable_thinking", str(VOCABULARIES["qwen3.5"]())).shows_images
    assert not framing_of("qwen3_instruct", str(VOCABULARIES["qwen3"]())).shows_images


def test_first_prompts_with_other_images_or_parts_are_not_taken_for_one_another(vision_folder: Path) -> None:
    """A first prompt is remembered by all that it says, and one with an image not at all."""
    framing = framing_of("qwen3_8_disable_thinking", str(vision_folder))
    text = "[{'type': 'text', 'text': 'x'}]"
    said = prompted(text)
    parts: list[Any] = [{"role": "user", "content": [{"type": "text", "text": "x"}]}]
    assert framing.first(said).to_ints() != framing.first(parts).to_ints()
    assert framing.first(said) is framing.first(prompted(text))
    shown: list[Any] = [{"role": "user", "content": [{"type": "image", "image": IMAGE}]}]
    assert framing.first(shown) is not framing.first(shown)


def flat(prompt: Any) -> list[Any]:
    """Tokens, and for each image its bytes."""
    return [
        item
        for chunk in prompt.chunks
        for item in (list(chunk.tokens) if hasattr(chunk, "tokens") else [(chunk.data, chunk.expected_tokens)])
    ]
