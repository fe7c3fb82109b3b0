"""Evaluation of a model that is no causal language model: its outputs and the original's, and retrieval."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from squeeze.checkpoint.pretrained import explained, load_tokenizer
from squeeze.checkpoint.text import read_text
from squeeze.engine.inputs import IDS, Samples, parameters_of
from squeeze.engine.output_quality import OutputQuality
from squeeze.engine.outputs import compare_outputs, embeddings, retrieval_agreement
from squeeze.engine.report import Report
from squeeze.errors import SqueezeError
from squeeze.integrations.load_model import load_model
from squeeze.recipes.samples import samples_of
from squeeze.system.storage import local_path

__all__ = ["PASSAGES", "measure_outputs", "output_qualities"]

PASSAGES = 2000  # of a text, for retrieval
_SAMPLES, _LENGTH = 32, 128
_BATCH, _WORDS = 32, 128  # passages at once, and most tokens of one
_SENTENCE = re.compile(r"(?<=[.!?])\s+")


def output_qualities(
    checkpoint: Path,
    original: Path,
    inputs: Path | Samples,
    device: str = "cpu",
    samples: int | None = None,
    progress: Callable[[int], None] | None = None,
    base: Path | None = None,
) -> list[OutputQuality]:
    """Return the distance of each output of a model from the original's.

    A text is also cut into passages, whose embeddings are the means of the last hidden states, if there are any.

    Args:
        checkpoint: Folder of the model.
        original: Folder of the model that it was made from.
        inputs: A text, an .npz file, or a folder of images or WAV files, as in `quantize --calibration`; or samples.
        device: Torch device of both models.
        samples: Most samples, or passages of a text; default: 32, and 2,000 passages.
        progress: Called with the number of further samples.
        base: Base of the model, as in load_model.
    """
    reference = load_model(original, device=device)
    model = load_model(checkpoint, device=device, base=base)
    if isinstance(inputs, Samples):
        return compare_outputs(model, reference, inputs, progress)
    source = local_path(inputs)
    is_text = source.is_file() and source.suffix not in (".npz", ".wav") and IDS in parameters_of(model)
    if is_text and "decoder_input_ids" not in parameters_of(model):
        return _on_text(model, reference, original, source, samples or PASSAGES, progress)
    found = samples_of(original, source, samples or _SAMPLES, _LENGTH, 0)
    return compare_outputs(model, reference, found, progress)


def _on_text(
    model: nn.Module,
    original: nn.Module,
    folder: Path,
    source: Path,
    count: int,
    progress: Callable[[int], None] | None,
) -> list[OutputQuality]:
    """Compare outputs on some passages of a text, and embeddings of all."""
    tokenizer, known = load_tokenizer(folder), parameters_of(original)
    passages = sentences(read_text(source))[:count]
    if len(passages) < 2:
        raise SqueezeError(f"{source}: expected at least 2 sentences of 4 words, got {len(passages)}")
    few = [_tokens(tokenizer, [one], known) for one in passages[:_SAMPLES]]
    found = compare_outputs(model, original, Samples(tuple(few)))
    if not any(one.name == "last_hidden_state" for one in found):
        return found
    encoded = list(_batches(tokenizer, passages, known))
    expected, ours = (embeddings(one, encoded, progress) for one in (original, model))
    cosines = (expected * ours).sum(-1)
    embedding = OutputQuality(
        name="embedding",
        shape=list(expected.shape[1:]),
        error=float((ours - expected).norm() / expected.norm()),
        cosine=float(cosines.mean()),
        kl_mean=None,
        top1_agreement=None,
        psnr=0.0,
        samples=len(expected),
        agreement=retrieval_agreement(ours, expected),
    )
    peak = float(expected.abs().max()) ** 2 / max(float((ours - expected).square().mean()), 1e-30)
    return [*found, replace(embedding, psnr=float(10 * torch.tensor(peak).log10()))]


def sentences(text: str) -> list[str]:
    """Return the sentences of a text that have at least 4 words, each once."""
    lines = (line for line in text.splitlines() if not line.strip().startswith("="))
    parts = (part.strip() for line in lines for part in _SENTENCE.split(line))
    return list(dict.fromkeys(part for part in parts if len(part.split()) >= 4))


def _batches(tokenizer: Any, passages: Sequence[str], known: Any) -> Iterator[dict[str, torch.Tensor]]:
    size = 1 if tokenizer.pad_token_id is None else _BATCH
    for first in range(0, len(passages), size):
        yield _tokens(tokenizer, list(passages[first : first + size]), known)


def _tokens(tokenizer: Any, texts: list[str], known: Any) -> dict[str, torch.Tensor]:
    """Return tokens of texts [N, L], padded if the tokenizer can pad, as a model's forward takes them."""
    with explained("the tokenizer"):
        padding = {"padding": True} if len(texts) > 1 else {}
        found = tokenizer(texts, return_tensors="pt", truncation=True, max_length=_WORDS, verbose=False, **padding)
    return {name: value for name, value in found.items() if name in known}


def measure_outputs(
    report: Report,
    inputs: Path,
    samples: int | None = None,
    device: str = "cpu",
    progress: Callable[[str, int, int], None] | None = None,
) -> None:
    """Compare the outputs of a report's model with the original's, and write the distances to the report."""
    done = 0

    def tick(count: int) -> None:
        nonlocal done
        done += count
        if progress:
            progress("outputs", done, done)

    target = Path(report.target)
    report.outputs = output_qualities(target, Path(report.source), inputs, device, samples, tick)
    if target.is_dir():
        report.write(target)
