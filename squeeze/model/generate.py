"""Continuing a text with a causal language model, piece by piece as it comes, with any cache."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from squeeze.errors import SqueezeError
from squeeze.model.evaluate import tokenize

__all__ = ["Generation", "generate"]


@dataclass(frozen=True)
class Generation:
    """text: what was generated. prompt, tokens: tokens read and made. seconds: of all of it."""

    text: str
    prompt: int
    tokens: int
    seconds: float


class _Streamer:
    """Hands text on as soon as no later token can change it; transformers calls put and end."""

    def __init__(self, tokenizer: Any, on_text: Callable[[str], None]) -> None:
        self.tokenizer, self.on_text = tokenizer, on_text
        self.tokens: list[int] = []
        self.told = 0
        self.text = ""
        self._prompt = True

    def put(self, value: torch.Tensor) -> None:
        if self._prompt:
            self._prompt = False
            return
        self.tokens += value.flatten().tolist()
        self.text = self.tokenizer.decode(self.tokens, skip_special_tokens=True)
        if not self.text.endswith("\N{REPLACEMENT CHARACTER}"):  # half of a character
            self._tell()

    def _tell(self) -> None:
        if len(self.text) > self.told:
            self.on_text(self.text[self.told :])
            self.told = len(self.text)

    def end(self) -> None:
        self._tell()


@torch.inference_mode()
def generate(
    model: Any,
    tokenizer: Any,
    prompt: str,
    *,
    cache: Any = None,
    tokens: int = 100,
    temperature: float = 0.0,
    seed: int = 0,
    on_text: Callable[[str], None] = lambda text: None,
    **options: Any,
) -> Generation:
    """At most `tokens` more tokens after a prompt; greedily at temperature 0.

    cache: what transformers takes as past_key_values; None for its own. options: of model.generate.
    Raises SqueezeError where the prompt has no token, or does not fit the model with what is to come.
    """
    ids = tokenize(tokenizer, prompt)[None].to(model.device)
    limit = getattr(model.config, "max_position_embeddings", None)
    if not ids.shape[1]:
        raise SqueezeError("the prompt is empty: give at least one token to go on from")
    if limit and ids.shape[1] + tokens > limit:
        raise SqueezeError(f"a prompt of {ids.shape[1]} tokens and {tokens} more do not fit the model's {limit}")
    if temperature > 0:
        options |= {"do_sample": True, "temperature": temperature}
        torch.manual_seed(seed)
    else:
        options |= {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
    streamer = _Streamer(tokenizer, on_text)
    started = time.perf_counter()
    model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        past_key_values=cache,
        max_new_tokens=tokens,
        streamer=streamer,
        **options,
    )
    return Generation(streamer.text, ids.shape[1], len(streamer.tokens), time.perf_counter() - started)
