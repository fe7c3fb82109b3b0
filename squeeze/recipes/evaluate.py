"""What compressing a model cost it: perplexity and distance from the original, into its report."""

from pathlib import Path

import torch
from torch import nn

from squeeze.checkpoint.text import read_tokens
from squeeze.engine.quality import evaluate
from squeeze.engine.report import Report
from squeeze.integrations.load_model import load_model
from squeeze.recipes.tokens import check_vocabulary

__all__ = ["evaluate", "measure", "opened"]


def opened(
    checkpoint: Path, text: Path, original: Path | None, device: str = "cpu", resident: int | None = None
) -> tuple[torch.Tensor, nn.Module, nn.Module | None]:
    """The tokens [T] of a text, a model, and the original that it is compared with. resident: of the model, as
    load_model has it."""
    tokens = read_tokens(text, original or checkpoint)
    reference = load_model(original, device=device) if original else None
    model = load_model(checkpoint, device=device, resident=resident)
    for network in (model, reference):
        if network is not None:
            check_vocabulary(network, tokens)
    return tokens, model, reference


def measure(report: Report, text: Path | str, windows: int | None = None, device: str = "cpu") -> None:
    """Measure perplexity before and after and the distance from the original on a text, into the report."""
    tokens = read_tokens(text, Path(report.source))
    original = load_model(Path(report.source), device=device)
    report.before = evaluate(original, tokens, windows=windows)
    report.after = evaluate(load_model(Path(report.target), device=device), tokens, windows=windows, original=original)
    report.write(Path(report.target))
