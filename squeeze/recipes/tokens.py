"""The tokens that methods are calibrated on: of a text, a data set, or written by the model itself."""

from pathlib import Path
from typing import Any

import torch

from squeeze.checkpoint.causal import check_causal
from squeeze.checkpoint.pretrained import explained, load_tokenizer
from squeeze.checkpoint.text import read_text, tokenize
from squeeze.errors import SqueezeError
from squeeze.integrations.load_model import load_model
from squeeze.kv.contract import CACHE
from squeeze.system.documents import read_object

__all__ = ["calibration_name", "calibration_tokens", "check_vocabulary"]

SELF = "self"


def calibration_tokens(
    folder: Path, source: str | Path | torch.Tensor | None, samples: int, length: int, seed: int, device: str = "cpu"
) -> torch.Tensor:
    """int64 [samples, length] by the tokenizer of a model's folder.

    source: a text file; a .jsonl file, whose objects' "text" are joined; "self" or None: text sampled from the model;
    the name of a data set that the package `datasets` has on this machine; or tokens [N, L] as they are. Of a text
    longer than needed, stretches are chosen at random by `seed`. Raises SqueezeError where it is too short.
    """
    if isinstance(source, torch.Tensor):
        return source.to(torch.int64)
    if source is None or str(source) == SELF:
        return _sampled(folder, samples, length, seed, device)
    tokens = tokenize(load_tokenizer(folder), read_text(source))
    stretches = len(tokens) // length
    if stretches < samples:
        raise SqueezeError(
            f"{source}: has {len(tokens)} tokens, and {samples} samples of {length} need {samples * length}: "
            "name a longer text, or choose fewer or shorter samples"
        )
    chosen = torch.randperm(stretches, generator=torch.Generator().manual_seed(seed))[:samples].sort().values
    return tokens[: stretches * length].reshape(stretches, length)[chosen]


def check_vocabulary(model: Any, tokens: torch.Tensor) -> None:
    """Raises SqueezeError where a tokenizer gives tokens that the model does not have."""
    size = model.config.get_text_config().vocab_size
    if tokens.numel() and int(tokens.max()) >= size:
        raise SqueezeError(
            f"the tokenizer gives token {int(tokens.max())}, and the model has {size}: they do not belong together"
        )


def calibration_name(calibration: str | Path | torch.Tensor | None) -> str:
    """What a report calls it."""
    if isinstance(calibration, torch.Tensor):
        return f"{len(calibration)} sequences given"
    return Path(calibration).name if calibration is not None else "self"


@torch.inference_mode()
def _sampled(folder: Path, samples: int, length: int, seed: int, device: str) -> torch.Tensor:
    """Text that the model writes: the whole model is in memory for as long as it takes."""
    model, config = load_model(folder, device=device), read_object(folder / "config.json")
    starts = (config.get(key) for key in ("bos_token_id", "eos_token_id"))
    start = max(next((one for one in starts if isinstance(one, int)), 0), 0)
    generator = torch.Generator().manual_seed(seed)
    ids = torch.full((samples, 1), start, device=device)
    given: dict[str, Any] = {}
    check_vocabulary(model, ids)
    check_causal(model)
    for _ in range(length - 1):
        with explained(folder):
            out = model(ids[:, -1:] if given else ids, use_cache=True, **given)
        given = {name: out[name] for name in (CACHE, "cache_params") if name in out}
        chances = torch.softmax(out.logits[:, -1].float().cpu(), -1)
        ids = torch.cat([ids, torch.multinomial(chances, 1, generator=generator).to(device)], 1)
    return ids.cpu()
