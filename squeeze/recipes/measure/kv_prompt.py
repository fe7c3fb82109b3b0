"""A prompt's KV cache in a file: what one run has read, later runs whose prompts begin with it need not read again."""

from pathlib import Path
from typing import Any

import torch

from squeeze.checkpoint.pretrained import explained
from squeeze.kv.cache import QuantizedKVCache
from squeeze.kv.contract import CACHE
from squeeze.recipes.measure.generate import prompt_ids

__all__ = ["prompt_cache"]


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
