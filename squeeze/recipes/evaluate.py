"""What compressing a model cost it: perplexity and distance from the original, into its report."""

from pathlib import Path

from squeeze.checkpoint.text import read_tokens
from squeeze.engine.quality import evaluate
from squeeze.engine.report import Report
from squeeze.integrations.load_model import load_model

__all__ = ["measure"]


def measure(report: Report, text: Path | str, windows: int | None = None, device: str = "cpu") -> None:
    """Measure perplexity before and after and the distance from the original on a text, into the report."""
    tokens = read_tokens(text, Path(report.source))
    original = load_model(Path(report.source), device=device)
    report.before = evaluate(original, tokens, windows=windows)
    report.after = evaluate(load_model(Path(report.target), device=device), tokens, windows=windows, original=original)
    report.write(Path(report.target))
