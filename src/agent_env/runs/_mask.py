"""Secret values out of what is written: each becomes the name of its variable in brackets, `⟨OPENAI_API_KEY⟩`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from agent_env._secrets import secret_values
from agent_env.runs._log import Ended
from agent_env.runs._tokens import masked_tokens
from agent_env.runs.record import SampledTokens

__all__ = ["Mask"]

_DEPTH = 3
"""How deep in JSON within strings of JSON a secret is looked for: of a value without quotes and the like, no depth is another."""

Text = TypeVar("Text", str, str | None)


class Mask:
    """The secrets that there were when it was made."""

    def __init__(self, secrets: Mapping[str, str] | None = None) -> None:
        """Take `secrets`, names by value; those of the environment when None."""
        self._secrets = secret_values() if secrets is None else secrets
        self._in_json: list[tuple[bytes, bytes]] = []
        for value, name in self._secrets.items():
            for found in _as_strings(value):
                self._in_json.append((_inside(found).encode("ascii"), _inside(f"⟨{name}⟩").encode("ascii")))

    def json(self, body: bytes) -> bytes:
        """Clean what `encode` wrote."""
        for found, instead in self._in_json:
            if found in body:
                body = body.replace(found, instead)
        return body

    def text(self, text: Text) -> Text:
        """Clean a text."""
        if text is not None:
            for value, name in self._secrets.items():
                if value in text:
                    text = text.replace(value, f"⟨{name}⟩")
        return text

    def ended(self, ended: Ended) -> Ended:
        """Clean how a run ended."""
        if not self._secrets:
            return ended
        return replace(
            ended,
            failure_step=self.text(ended.failure_step),
            failure_message=self.text(ended.failure_message),
            scores=self.json(ended.scores.encode("ascii")).decode("ascii"),
        )

    def tokens(self, tokens: SampledTokens) -> SampledTokens:
        """Clean what a message was sampled as."""
        return masked_tokens(tokens, self._secrets)


def _as_strings(value: str) -> list[str]:
    """How a string has a value: as it is, or as JSON in the string has it, as a call's raw arguments; the deepest first."""
    found = level = {value: None}
    for _ in range(_DEPTH):
        level = {_inside(text, is_ascii=is_ascii): None for text in level for is_ascii in (True, False)}
        found = level | found
    return list(found)


def _inside(value: str, *, is_ascii: bool = True) -> str:
    return json.dumps(value, ensure_ascii=is_ascii)[1:-1]
