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

Text = TypeVar("Text", str, str | None)


class Mask:
    """The secrets that there were when it was made."""

    def __init__(self, secrets: Mapping[str, str] | None = None) -> None:
        """Take `secrets`, names by value; those of the environment when None."""
        self._secrets = secret_values() if secrets is None else secrets
        self._in_json: list[tuple[bytes, bytes]] = []
        for value, name in self._secrets.items():
            # As a string in JSON has it, and as a string has it that is JSON itself, as a call's raw arguments are.
            once = _inside(value)
            for found in dict.fromkeys((_inside(once), once)):
                self._in_json.append((found.encode("ascii"), _inside(f"⟨{name}⟩").encode("ascii")))

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


def _inside(value: str) -> str:
    return json.dumps(value)[1:-1]
