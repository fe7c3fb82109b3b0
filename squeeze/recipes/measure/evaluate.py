"""Evaluation of a model on a text: perplexity before and after compression, and the distance from the original."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from squeeze.checkpoint.causal import check_causal, check_positions, position_limit
from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.checkpoint.text import read_tokens
from squeeze.engine.quality import evaluate
from squeeze.engine.report import Report
from squeeze.integrations import gguf
from squeeze.integrations.load_model import load_model, tokenizer_of
from squeeze.recipes.measure.activations import ActivationSpec, round_activations
from squeeze.recipes.tokens import check_vocabulary

__all__ = ["WINDOW", "evaluate", "measure", "opened", "window_for"]

WINDOW = 1024  # tokens


def opened(
    checkpoint: Path,
    text: Path,
    original: Path | None,
    device: str = "cpu",
    resident: int | None = None,
    base: Path | None = None,
    activations: str | None = None,
) -> tuple[torch.Tensor, nn.Module, nn.Module | None]:
    """Return the tokens [T] of a text, a model, and its original or None.

    Args:
        checkpoint: Folder or GGUF file of the model.
        text: The text file.
        original: Folder or GGUF file of the original, whose tokenizer is used.
        device: Torch device of both models.
        resident: Bytes of decoded weights to keep, as in load_model.
        base: Base of the model, as in load_model.
        activations: Grid to which the model's activations are rounded (activations.py), not the original's.
    """
    spec = None if activations is None else ActivationSpec.parse(activations)
    tokens = read_tokens(text, original or checkpoint, tokenizer_of)
    reference = load_model(original, device=device) if original else None
    model = load_model(checkpoint, device=device, resident=resident, base=base)
    for network in (model, reference):
        if network is not None:
            check_causal(network)
            check_vocabulary(network, tokens)
    if spec is not None:
        round_activations(model, None if gguf.is_gguf(checkpoint) else Checkpoint.open(checkpoint), spec)
    return tokens, model, reference


def window_for(*models: nn.Module | None, requested: int | None = None) -> int:
    """Return the tokens of a window: `requested`, or WINDOW, or all positions if a model has fewer.

    Raises SqueezeError if a model has fewer positions than `requested`.
    """
    networks = [model for model in models if model is not None]
    for model in networks if requested else ():
        check_positions(model, requested or 0, "use `window` {}")
    return requested or min([WINDOW, *(position_limit(model) or WINDOW for model in networks)])


def measure(
    report: Report,
    text: Path | str,
    windows: int | None = None,
    device: str = "cpu",
    progress: Callable[[str, int, int], None] | None = None,
    base: Path | str | None = None,
) -> None:
    """Measure perplexity before and after compression and the distance from the original, and add them to the report.

    Args:
        report: The report of a compressed folder; it is written to the folder again.
        text: The text file.
        windows: Largest number of windows; None reads the whole text.
        device: Torch device of both models.
        progress: Called with what is measured, the tokens read, and all tokens.
        base: Base of the compressed model, as in load_model.
    """
    tokens = read_tokens(text, Path(report.source))
    original = load_model(Path(report.source), device=device)
    check_causal(original)
    window = window_for(original)
    total = 2 * (len(tokens) if windows is None else min(len(tokens), windows * window))
    tokens_read, label = 0, ""

    def tick(count: int) -> None:
        nonlocal tokens_read
        tokens_read += count
        if progress:
            progress(label, tokens_read, total)

    def on_perplexity(perplexity: float) -> None:
        nonlocal label
        label = f"{'after' if report.before else 'before'}, perplexity {perplexity:.4g}"

    report.before = None
    shared = {"windows": windows, "window": window, "progress": tick, "on_perplexity": on_perplexity}
    report.before = evaluate(original, tokens, **shared)  # type: ignore[arg-type]
    model = load_model(Path(report.target), device=device, base=base)
    check_causal(model)
    report.after = evaluate(model, tokens, original=original, **shared)  # type: ignore[arg-type]
    if Path(report.target).is_dir():
        report.write(Path(report.target))
