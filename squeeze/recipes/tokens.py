"""Calibration sets: tokens of a text, of a data set, or sampled from the model itself."""

from pathlib import Path
from typing import Any

import torch

from squeeze.checkpoint.causal import check_causal
from squeeze.checkpoint.chat import conversations_in, in_template, read_conversations
from squeeze.checkpoint.pretrained import explained, has_tokenizer, is_causal, load_config, load_tokenizer
from squeeze.checkpoint.text import read_text, tokenize
from squeeze.codecs.stream.decompressor import decompress
from squeeze.engine.inputs import Inputs, Samples
from squeeze.errors import SqueezeError
from squeeze.integrations.load_model import load_model
from squeeze.kv.contract import CACHE
from squeeze.recipes.samples import needed, reads_text, samples_of, texts_of
from squeeze.system.documents import read_object
from squeeze.system.storage import local_path

__all__ = [
    "built_in",
    "calibration_inputs",
    "calibration_name",
    "calibration_tokens",
    "check_vocabulary",
    "default_calibration",
]

SELF, BUILT_IN = "self", "built-in"
_SET = "calibration.sqz"  # beside this file; CALIBRATION.md has its sources


def calibration_inputs(
    folder: Path,
    source: str | Path | torch.Tensor | Samples | None,
    samples: int,
    length: int,
    seed: int,
    device: str,
    chat: bool = False,
) -> Inputs:
    """Return a calibration set as in calibration_tokens, or samples of a model that is no causal language model."""
    if chat and (isinstance(source, Samples | torch.Tensor) or not is_causal(load_config(folder))):
        raise SqueezeError("`chat` is for texts of causal language models: leave it out")
    if isinstance(source, Samples):
        return source
    if isinstance(source, torch.Tensor) or is_causal(load_config(folder)):
        return calibration_tokens(folder, source, samples, length, seed, device, chat)
    source = default_calibration(folder) if source is None else str(source)
    if source == BUILT_IN and reads_text(folder):
        return texts_of(folder, built_in(), BUILT_IN, samples, length, seed)
    if source in (SELF, BUILT_IN):
        raise needed(folder)
    return samples_of(folder, local_path(source), samples, length, seed)


def calibration_tokens(
    folder: Path,
    source: str | Path | torch.Tensor | None,
    samples: int,
    length: int,
    seed: int,
    device: str = "cpu",
    chat: bool = False,
) -> torch.Tensor:
    """Return a calibration set, int64 [samples, length].

    Args:
        folder: Folder of the model, whose tokenizer is used.
        source: A text file; a .jsonl file, whose "text" values are joined; "built-in" for the text that comes with
            squeeze; "self" for text sampled from the model; None for default_calibration; a data set that the package
            `datasets` has on this machine; or tokens [N, L], returned as they are.
        samples: Number of sequences.
        length: Tokens of a sequence.
        seed: Seed of the choice of sequences from a longer text, or of sampling.
        device: Torch device for sampling.
        chat: Whether conversations are put into the model's chat template: lines of a .jsonl file with "messages", or
            paragraphs of a text that begin with "User: ".

    Raises:
        SqueezeError: If the text is too short, or `chat` finds no conversation or no template.
    """
    if isinstance(source, torch.Tensor):
        return source.to(torch.int64)
    source = default_calibration(folder) if source is None else source
    if chat and str(source) == SELF:
        raise SqueezeError("`chat` needs a calibration text with conversations, such as built-in: name one")
    if str(source) == SELF:
        return _sampled(folder, samples, length, seed, device)
    tokenizer = load_tokenizer(folder)
    tokens = tokenize(tokenizer, _chats(tokenizer, source) if chat else _text(source))
    stretches = len(tokens) // length
    if stretches < samples:
        raise SqueezeError(
            f"{source}: has {len(tokens)} tokens, and {samples} samples of {length} need {samples * length}: "
            "name a longer text, or choose fewer or shorter samples"
        )
    selected = torch.randperm(stretches, generator=torch.Generator().manual_seed(seed))[:samples].sort().values
    return tokens[: stretches * length].reshape(stretches, length)[selected]


def _text(source: str | Path) -> str:
    return built_in() if str(source) == BUILT_IN else read_text(source)


def _chats(tokenizer: Any, source: str | Path) -> str:
    """Return a text with its conversations in the tokenizer's chat template."""
    path = local_path(source)
    if path.suffix == ".jsonl" and path.is_file():
        return "\n".join(in_template(tokenizer, messages) for messages in read_conversations(path))
    parts = list(conversations_in(_text(source)))
    if all(isinstance(part, str) for part in parts):
        raise SqueezeError(f'{source}: expected paragraphs that begin with "User: ", found none: leave out `chat`')
    return "\n\n".join(part if isinstance(part, str) else in_template(tokenizer, part) for part in parts)


def built_in() -> str:
    """Return the built-in calibration text: books, conversations, source code, tables and twelve languages."""
    return decompress(Path(__file__).with_name(_SET).read_bytes()).decode()


def check_vocabulary(model: Any, tokens: torch.Tensor) -> None:
    """Raise SqueezeError if a tokenizer gives ids that the model does not have."""
    size = model.config.get_text_config().vocab_size
    if tokens.numel() and int(tokens.max()) >= size:
        raise SqueezeError(
            f"the tokenizer gives token {int(tokens.max())}, but the model has only {size}: use its own tokenizer"
        )


def calibration_name(calibration: str | Path | torch.Tensor | Samples | None, folder: Path) -> str:
    """Return the name of a calibration set of the model in `folder`, for the report."""
    if isinstance(calibration, torch.Tensor | Samples):
        return f"{len(calibration)} sequences given"
    return Path(calibration).name if calibration is not None else default_calibration(folder)


def default_calibration(folder: Path) -> str:
    """Return the calibration set of a model if none is named: "built-in", or "self" if it has no tokenizer."""
    return BUILT_IN if has_tokenizer(folder) else SELF


@torch.inference_mode()
def _sampled(folder: Path, samples: int, length: int, seed: int, device: str) -> torch.Tensor:
    """Sample text from the model, which is in memory meanwhile."""
    model, config = load_model(folder, device=device), read_object(folder / "config.json")
    starts = (config.get(key) for key in ("bos_token_id", "eos_token_id"))
    start = max(next((one for one in starts if isinstance(one, int)), 0), 0)
    generator = torch.Generator().manual_seed(seed)
    ids = torch.full((samples, 1), start, device=device)
    options: dict[str, Any] = {}
    check_vocabulary(model, ids)
    check_causal(model)
    for _ in range(length - 1):
        with explained(folder):
            out = model(ids[:, -1:] if options else ids, use_cache=True, **options)
        options = {name: out[name] for name in (CACHE, "cache_params") if name in out}
        chances = torch.softmax(out.logits[:, -1].float().cpu(), -1)
        ids = torch.cat([ids, torch.multinomial(chances, 1, generator=generator).to(device)], 1)
    return ids.cpu()
