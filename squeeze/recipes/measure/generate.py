"""Text generation with a causal language model, streamed, with any cache, a draft model, or a saved prompt cache."""

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
from squeeze.checkpoint.chat import in_template
from squeeze.checkpoint.pretrained import explained
from squeeze.checkpoint.text import tokenize
from squeeze.errors import SqueezeError
from squeeze.integrations.load_model import load_model, tokenizer_of
from squeeze.kv.cache import QuantizedKVCache
from squeeze.kv.contract import CACHE
from squeeze.kv.memory import nbytes_of
from squeeze.recipes.tokens import check_vocabulary

__all__ = ["Generation", "chat_prompt", "generate", "opened", "prompt_cache", "prompt_ids"]

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
    """Load the model and tokenizer of a folder or GGUF file for generation.

    Only _SETTINGS of its generation_config.json are kept: others choose code to run, or make unbounded work.

    Args:
        folder: The folder or file.
        device: Torch device.
        resident: Bytes of decoded weights to keep, as in load_model.
        base: Base of the model, as in load_model.
        product: "exact" or "fused", as in load_model.
    """
    from transformers import GenerationConfig  # transformers takes seconds to import

    model: Any = load_model(folder, device=device, resident=resident, base=base, product=product)
    check_causal(model)
    with explained(folder):
        settings = {name: getattr(model.generation_config, name, None) for name in _SETTINGS}
        model.generation_config = GenerationConfig(**settings)
    return model, tokenizer_of(folder)


@dataclass(frozen=True)
class Generation:
    """A generated text and its counts.

    `prompt` and `tokens` count the tokens read and generated. `cache` is the cache at the end, or None. With a draft,
    `proposed` counts the tokens that it suggested and `accepted` those that the model kept.
    """

    text: str
    prompt: int
    tokens: int
    seconds: float
    cache: Any = None
    proposed: int = 0
    accepted: int = 0

    @property
    def cache_bytes(self) -> int:
        """Bytes of the tensors of the cache at the end."""
        return nbytes_of(self.cache)


class _Streamer:
    """A streamer that passes text on as soon as no later token can change it; transformers calls `put` and `end`."""

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
    """Generate at most `tokens` tokens after a prompt.

    A draft model with the same vocabulary suggests tokens, which the model checks several at a time (speculative
    decoding, Leviathan et al. 2023, arXiv 2211.17192). The text is the one that the model writes alone, except with a
    cache that quantises tokens. Such a cache quantises after each check, so that some tokens are read in full precision
    for longer.

    Args:
        model: A model of `opened`.
        tokenizer: Its tokenizer.
        prompt: The text to continue.
        cache: A transformers cache; None for the model's own.
        draft: A smaller model, for greedy decoding only.
        tokens: Largest number of new tokens.
        temperature: 0 for greedy decoding.
        seed: Seed of sampling.
        on_text: Called with each new piece of text.
        options: More arguments of model.generate.

    Raises:
        SqueezeError: If the prompt is empty or too long, or the draft does not fit the model.
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
    final_cache = getattr(result, CACHE, None)
    return Generation(streamer.text, ids.shape[1], generated, seconds, final_cache, counts.proposed, accepted)


class _Finite:
    """A logits processor that stops generation with an error if logits are not finite."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        check_finite(self.model, scores, input_ids)
        return scores


def chat_prompt(tokenizer: Any, message: str) -> str:
    """Return a user's message in the tokenizer's chat template, as a prompt for the model's reply.

    A first token that the tokenizer adds by itself is left out. Raises SqueezeError if there is no chat template.
    """
    return in_template(tokenizer, [{"role": "user", "content": message}], replies=True)


def prompt_ids(model: Any, tokenizer: Any, prompt: str, tokens: int) -> torch.Tensor:
    """Return the ids of a prompt, int64 [1, P], and check that they and `tokens` more fit the model.

    Raises SqueezeError if the prompt is empty or too long.
    """
    ids = tokenize(tokenizer, prompt)[None].to(model.device)
    check_vocabulary(model, ids)
    limit = getattr(model.config, "max_position_embeddings", None)
    if not ids.shape[1]:
        raise SqueezeError("the prompt is empty: give at least one token to go on from")
    if limit and ids.shape[1] + tokens > limit:
        raise SqueezeError(f"a prompt of {ids.shape[1]} tokens and {tokens} more do not fit the model's {limit}")
    return ids


def _sampling(temperature: float, seed: int) -> dict[str, Any]:
    """Return the sampling arguments of model.generate, and seed torch's random numbers."""
    if temperature > 0:
        torch.manual_seed(seed)
        return {"do_sample": True, "temperature": temperature}
    return {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}


def _check_draft(model: Any, draft: Any, cache: Any, temperature: float) -> None:
    """Raise SqueezeError if a draft model cannot be used with these settings."""
    if temperature > 0:
        raise SqueezeError("a draft is for greedy decoding: leave the temperature at 0")
    if cache is not None and cache.get_seq_length():
        raise SqueezeError("a draft begins with an empty cache, and this one holds tokens")
    if (policy := getattr(cache, "policy", None)) and policy.evicts:
        raise SqueezeError("a draft needs a cache that keeps all tokens: use a policy that evicts none")
    ours, theirs = (one.config.get_text_config().vocab_size for one in (model, draft))
    if ours != theirs:
        raise SqueezeError(f"the draft has {theirs} tokens, and the model {ours}: they need the same vocabulary")


@dataclass
class _Counts:
    """Counts of forward passes while a draft helps: each pass of the draft proposes a token, each of the model's checks
    several.
    """

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
    path: Path, model: Any, tokenizer: Any, prompt: str, tokens: int, cache: QuantizedKVCache, names_policy: bool
) -> tuple[QuantizedKVCache, int]:
    """Return the cache of a prompt without its last token, and the number of tokens that came from a file.

    If the file does not exist, the prompt is read into the empty `cache`, which is saved. Otherwise the saved cache is
    loaded: it must belong to the same model, to the policy of `cache` if `names_policy`, and to the first tokens of
    this prompt. Generation reads the last token.

    Args:
        path: The cache file.
        model: A model of `opened`.
        tokenizer: Its tokenizer.
        prompt: The prompt.
        tokens: Number of tokens that will be generated.
        cache: An empty cache.
        names_policy: Whether the caller named a policy, which the file's must equal.

    Raises:
        SqueezeError: If the prompt does not fit the model, or the file cannot be loaded (as kv.file.load_cache).
    """
    ids = prompt_ids(model, tokenizer, prompt, tokens)
    first = ids[0, :-1]
    if path.exists():
        options: dict[str, Any] = {"policy": cache.policy} if names_policy else {}
        loaded = QuantizedKVCache.load(
            path, model.config, model=model, prompt=first, device=str(model.device), **options
        )
        return loaded, loaded.get_seq_length()
    if len(first):
        with explained(getattr(model, "name_or_path", "") or type(model).__name__):
            model(first[None], **{CACHE: cache}, use_cache=True, logits_to_keep=1)
    cache.save(path, model, first)
    if cache.policy.archives:  # so that this run writes what later ones do
        cache = QuantizedKVCache.load(
            path, model.config, model=model, prompt=first, device=str(model.device), policy=cache.policy
        )
    return cache, 0
