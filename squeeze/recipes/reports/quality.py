"""Parts of pages that show quality: on a text, on tasks, and of two models compared."""

from pathlib import Path
from typing import Any

from squeeze.engine.tasks import TaskScore, accuracies
from squeeze.recipes.reports.page_data import Estimate, Place, Shown, Span, Texts

__all__ = ["Record", "accuracy_of", "compared", "estimates", "evaluated", "quality_of", "scores"]

Record = dict[str, Any]
_Z = 1.96  # standard errors to each side, of 95 % confidence
_QUALITY = {"perplexity": "perplexity", "ratio": "perplexity, times the original's", "kl_mean": "KL, nats a token"} | {
    "top1_agreement": "same most probable token"
}


def estimates(quality: Record, who: str) -> list[Estimate]:
    intervals = quality.get("intervals") or {}
    return [
        Estimate(title, who, quality[key], *intervals.get(key, ()))
        for key, title in _QUALITY.items()
        if quality.get(key) is not None
    ]


def quality_of(quality: Record) -> Record:
    """Return the cells of a table row for quality on a text."""
    ratio = quality.get("ratio")
    return {
        "perplexity": quality.get("perplexity"),
        "rise": None if ratio is None else ratio - 1,
        "kl": quality.get("kl_mean"),
        "agreement": quality.get("top1_agreement"),
    }


def evaluated(record: Record) -> Shown:
    name, scored = Path(record["input"]).name, record.get("tasks", ())
    lead = [f"Scored on {len({score['task'] for score in scored})} tasks by lm-eval."] if scored else []
    if "perplexity" in record:
        predicted = f"{record['tokens']:,} tokens of {Path(record['text']).name}, predicted in windows of"
        lead.insert(0, f"{predicted} {record['window']:,}, {record['tokens_per_second']:.1f} a second.")
    return Shown(
        name=name,
        lead=" ".join(lead),
        quality=(*estimates(record, name), *scores(record, name, "the original")),
        rows=({"run": name, **quality_of(record), **accuracy_of(record)},),
    )


def compared(record: Record) -> Shown:
    name, pairs = Path(record["input"]).name, record["generations"]
    return Shown(
        name=name,
        lead=f"Compared with {Path(record['original']).name}, after {len(pairs)} prompts: {record['identical']} texts "
        f"are the same, and {100 * record['same']:.1f} % of {record['tokens']:,} tokens before they part.",
        quality=tuple(estimates(record, name)),
        rows=({"run": name, **quality_of(record)},),
        texts=tuple(map(_texts, pairs)),
        places=tuple(Place(**place) for place in record["worst"]),
    )


def _texts(pair: Record) -> Texts:
    spans = zip(pair["pieces"], pair["kl"], pair["agreed"], strict=True)
    parted = "the same" if pair["original"] == pair["text"] else f"{pair['same']} of {len(pair['kl'])} tokens the same"
    return Texts(pair["prompt"], tuple(Span(*span) for span in spans), pair["text"], parted)


def scores(record: Record, who: str, other: str) -> list[Estimate]:
    """Return task scores with 95 % confidence intervals."""
    return [
        estimate
        for score in record.get("tasks", ())
        for name, key in ((other, "base"), (who, "value"))
        if (estimate := _score(score, key, name)) is not None
    ]


def _score(score: Record, key: str, who: str) -> Estimate | None:
    value, stderr = score[key], score["stderr" if key == "value" else "base_stderr"]
    if value is None:
        return None
    bounds = () if stderr is None else (value - _Z * stderr, value + _Z * stderr)
    return Estimate(f"{score['task']}, {score['metric']}", who, value, *bounds)


def accuracy_of(record: Record) -> Record:
    """Return the cell of a table row with the mean over tasks."""
    values = [score.value for score in accuracies(map(TaskScore.from_json, record.get("tasks", ())))]
    return {"accuracy": sum(values) / len(values)} if values else {}
