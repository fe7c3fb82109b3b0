"""Continuing a text with a causal language model, piece by piece as it comes, with any cache."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from squeeze.checkpoint.causal import check_causal, check_finite
from squeeze.checkpoint.pretrained import explained
from squeeze.checkpoint.text import tokenize
from squeeze.errors import SqueezeError
from squeeze.integrations.load_model import load_model, tokenizer_of
from squeeze.kv.cache import QuantizedKVCache
from squeeze.kv.contract import CACHE
from squeeze.recipes.tokens import check_vocabulary

__all__ = ["Generation", "generate", "opened", "prompt_cache", "prompt_ids"]

_SETTINGS = (
    *("bos_token_id", "eos_token_id", "pad_token_id"),
    *("top_k", "top_p", "min_p", "repetition_penalty", "no_repeat_ngram_size"),
    *("forced_bos_token_id", "forced_eos_token_id", "suppress_tokens", "begin_suppress_tokens"),
)


def opened(
    folder: Path,
    device: str = "cpu",
    resident: int | None = None,
    base: Path | None = None,
    product: str | None = None,
) -> tuple[nn.Module, Any]:
    """The model and tokenizer of a folder or a GGUF file; resident, base, product: as load_model has them. Of its
    settings for generating only _SETTINGS count: others choose code to run, or make work without end."""
    from transformers import GenerationConfig  # transformers takes seconds to import

    model: Any = load_model(folder, device=device, resident=resident, base=base, product=product)
    check_causal(model)
    with explained(folder):
        settings = {name: getattr(model.generation_config, name, None) for name in _SETTINGS}
        model.generation_config = GenerationConfig(**settings)
    return model, tokenizer_of(folder)


@dataclass(frozen=True)
class Generation:
    """text: what was generated. prompt, tokens: tokens read and made. seconds: of all of it. cache: the cache at the
    end, None if the model has none. With a draft, proposed and accepted: tokens that it suggested, and those of them
    that were taken."""

    text: str
    prompt: int
    tokens: int
    seconds: float
    cache: Any = None
    proposed: int = 0
    accepted: int = 0


class _Streamer:
    """Hands text on as soon as no later token can change it; transformers calls put and end."""

    def __init__(self, tokenizer: Any, on_text: Callable[[str], None]) -> None:
        self.tokenizer, self.on_text = tokenizer, on_text
        self.tokens: list[int] = []
        self.handed_on = 0
        self.text = ""
        self._prompt = True

    def put(self, value: torch.Tensor) -> None:
        if self._prompt:
            self._prompt = False
            return
        self.tokens += value.flatten().tolist()
        self.text = self.tokenizer.decode(self.tokens, skip_special_tokens=True)
        if not self.text.endswith("\N{REPLACEMENT CHARACTER}"):  # half of a character
            self._hand_on()

    def _hand_on(self) -> None:
        if len(self.text) > self.handed_on:
            self.on_text(self.text[self.handed_on :])
            self.handed_on = len(self.text)

    def end(self) -> None:
        self._hand_on()


@torch.inference_mode()
def generate(  # noqa: PLR0913
    model: Any,
    tokenizer: Any,
    prompt: str,
    *,
    cache: Any = None,
    draft: Any = None,
    tokens: int = 100,
    temperature: float = 0.0,
    seed: int = 0,
    on_text: Callable[[str], None] = lambda text: None,
    **options: Any,
) -> Generation:
    """At most `tokens` more tokens after a prompt; greedily at temperature 0.

    cache: what transformers takes as one; None for its own. draft: a smaller model with the same vocabulary
    that suggests tokens, which the model checks several at a time (speculative decoding, Leviathan et al. 2023, arXiv
    2211.17192): the text is the one that the model alone writes, up to a cache that codes tokens: it does so after each
    check of several, which see some tokens before they are coded, or after. options: of model.generate.
    Raises SqueezeError where the prompt has no token, or does not fit the model with what is to come, or the draft does
    not fit the model.
    """
    ids = prompt_ids(model, tokenizer, prompt, tokens)
    options |= _sampling(temperature, seed)
    streamer, counts = _Streamer(tokenizer, on_text), _Counts()
    options |= {CACHE: cache} if cache is not None else {}
    if draft is not None:
        _check_draft(model, draft, cache, temperature)
        options["assistant_model"] = draft
    started = time.perf_counter()
    with counts.watching(model, draft), explained(getattr(model, "name_or_path", "") or type(model).__name__):
        result = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=tokens,
            streamer=streamer,
            return_dict_in_generate=True,
            logits_processor=[_Finite(model)],
            **options,
        )
    seconds, generated = time.perf_counter() - started, len(streamer.tokens)
    accepted = min(max(generated - counts.checks, 0), counts.proposed)
    left = getattr(result, CACHE, None)
    return Generation(streamer.text, ids.shape[1], generated, seconds, left, counts.proposed, accepted)


class _Finite:
    """Ends generation by an error as soon as logits are not numbers; transformers calls it with each token's."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        check_finite(self.model, scores, input_ids)
        return scores


def prompt_ids(model: Any, tokenizer: Any, prompt: str, tokens: int) -> torch.Tensor:
    """int64 [1, tokens of the prompt]. Raises SqueezeError where there are none, or too many."""
    ids = tokenize(tokenizer, prompt)[None].to(model.device)
    check_vocabulary(model, ids)
    limit = getattr(model.config, "max_position_embeddings", None)
    if not ids.shape[1]:
        raise SqueezeError("the prompt is empty: give at least one token to go on from")
    if limit and ids.shape[1] + tokens > limit:
        raise SqueezeError(f"a prompt of {ids.shape[1]} tokens and {tokens} more do not fit the model's {limit}")
    return ids


def _sampling(temperature: float, seed: int) -> dict[str, Any]:
    """What model.generate is told; torch's random numbers start from the seed."""
    if temperature > 0:
        torch.manual_seed(seed)
        return {"do_sample": True, "temperature": temperature}
    return {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}


def _check_draft(model: Any, draft: Any, cache: Any, temperature: float) -> None:
    """Raises SqueezeError where a draft would be of no use, or of wrong use."""
    if temperature > 0:
        raise SqueezeError("a draft is for greedy decoding: leave the temperature at 0")
    if cache is not None and cache.get_seq_length():
        raise SqueezeError("a draft begins with an empty cache, and this one holds tokens")
    if (policy := getattr(cache, "policy", None)) and policy.evicts:
        raise SqueezeError("a draft needs a cache that keeps all tokens: use a policy that gives up none")
    ours, theirs = (one.config.get_text_config().vocab_size for one in (model, draft))
    if ours != theirs:
        raise SqueezeError(f"the draft has {theirs} tokens, and the model {ours}: they need the same vocabulary")


@dataclass
class _Counts:
    """Forward passes while a draft helps: each of the draft's proposes a token, each of the model's checks some."""

    proposed: int = 0
    checks: int = 0

    @contextmanager
    def watching(self, model: Any, draft: Any) -> Iterator[None]:
        if draft is None:
            yield
            return

        def checked(*ignored: Any) -> None:
            self.checks += 1

        def proposed(*ignored: Any) -> None:
            self.proposed += 1

        hooks = [model.register_forward_hook(checked), draft.register_forward_hook(proposed)]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


@torch.inference_mode()
def prompt_cache(
    path: Path, model: Any, tokenizer: Any, prompt: str, tokens: int, cache: QuantizedKVCache, asked: bool
) -> tuple[QuantizedKVCache, int]:
    """The cache of a prompt but for its last token, which is read when `tokens` more are generated; and how many tokens
    came from the file.

    Where there is no such file, the prompt is read into the empty `cache`, which is written. Otherwise the file's cache
    is taken, which has to be of the same model, of the policy of `cache` where one was asked for, and of the first
    tokens of this prompt. Raises as file.load_cache does, and SqueezeError where the prompt does not fit the model.
    """
    ids = prompt_ids(model, tokenizer, prompt, tokens)
    first = ids[0, :-1]
    if path.exists():
        options: dict[str, Any] = {"policy": cache.policy} if asked else {}
        loaded = QuantizedKVCache.load(
            path, model.config, model=model, prompt=first, device=str(model.device), **options
        )
        return loaded, loaded.get_seq_length()
    if len(first):
        with explained(getattr(model, "name_or_path", "") or type(model).__name__):
            model(first[None], **{CACHE: cache}, use_cache=True, logits_to_keep=1)
    cache.save(path, model, first)
    return cache, 0
