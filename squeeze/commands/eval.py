"""`squeeze eval`."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from squeeze.commands import options
from squeeze.commands.models import judged, tasks_of, use
from squeeze.commands.progress import bar, steps
from squeeze.commands.reporting import write_page

if TYPE_CHECKING:
    from squeeze.engine.tasks import TaskScore
    from squeeze.recipes.tasks import Tasks

_FIGURES = ("perplexity", "tokens", "tokens_per_second", "kl_mean", "kl_p99", "top1_agreement", "ratio")


@click.command(name="eval")
@click.argument("checkpoint", metavar="CKPT", type=options.PATH)
@click.option("--text", metavar="FILE", type=options.PATH, help="The text to predict.")
@click.option("--original", metavar="CKPT", type=options.PATH, help="Also measure the distance from this model.")
@click.option("--window", default=1024, metavar="N", type=click.IntRange(2), help="Tokens seen at once (1024).")
@click.option("--stride", metavar="N", type=click.IntRange(1), help="Tokens between windows (default: the window).")
@click.option("--windows", metavar="N", type=click.IntRange(1), help="Stop after so many.")
@options.scoring
@options.max_task_drop
@options.base
@options.resident
@options.computing
@options.report
@options.saying
def evaluate(
    checkpoint: Path, original: Path | None, max_task_drop: float | None, page: Path | None, **params: Any
) -> None:
    """Measure how well a model predicts a text, and what it scores on tasks.

    Of a text, perplexity; with --original KL divergence and agreement. Tasks are lm-eval's, with the original's scores
    beside them. Their data comes from the Hugging Face Hub, or lies in --task-folder.

    \b
    Example: squeeze eval my-model-4bit --original my-model --text wiki.txt
             squeeze eval my-model-4bit --original my-model --tasks hellaswag,arc_easy
    """
    tasks = tasks_of(params)
    if tasks is None and params["text"] is None:
        raise click.UsageError("give --text FILE, --tasks NAMES, or both")
    if max_task_drop is not None and (tasks is None or original is None):
        raise click.UsageError("--max-task-drop needs --tasks and --original")
    use(params.pop("threads"))
    record: dict[str, Any] = {"command": "eval", "input": str(checkpoint)}
    if params["text"] is not None:
        record |= _on_text(checkpoint, original, **params)
    scores = _on_tasks(tasks, checkpoint, original, **params) if tasks is not None else []
    record |= {"tasks": [score.as_json() for score in scores]} if tasks is not None else {}
    write_page(page, [record])
    if params["as_json"]:
        click.echo(json.dumps(record))
    else:
        _say(record)
        for score in scores:
            click.echo(f"{score.task + ':':<20}{score}")
    if max_task_drop is not None:
        from squeeze.engine.tasks import check_drops

        with judged():
            check_drops(str(checkpoint), scores, max_task_drop)


def _on_text(
    checkpoint: Path,
    original: Path | None,
    *,
    text: Path,
    window: int,
    stride: int | None,
    windows: int | None,
    quiet: bool,
    as_json: bool,
    **opening: Any,
) -> dict[str, Any]:
    from squeeze.recipes import evaluate as evaluating

    tokens, model, reference = evaluating.opened(checkpoint, text, original, **opening)
    total = len(tokens) if windows is None else min(len(tokens), window + (windows - 1) * (stride or window))
    with bar(checkpoint.name, total, unit="", quiet=quiet, as_json=as_json) as tick:
        quality = evaluating.evaluate(
            model,
            tokens,
            window=window,
            stride=stride,
            windows=windows,
            original=reference,
            progress=tick,
            told=lambda perplexity: tick.say(f"perplexity {perplexity:.4g}"),
        )
    return {"text": str(text), "window": window, **quality.as_json()}


def _on_tasks(
    tasks: "Tasks",
    checkpoint: Path,
    original: Path | None,
    *,
    device: str,
    resident: int | None,
    base: Path | None,
    quiet: bool,
    as_json: bool,
    **ignored: Any,
) -> "list[TaskScore]":
    from squeeze.recipes.tasks import scores

    opening: dict[str, Any] = {"device": device, "resident": resident, "base": base}
    kept = "nothing is kept of it."
    with steps(f"{checkpoint.name}: tasks", unit=" answers", kept=kept, quiet=quiet, as_json=as_json) as progress:
        return scores(tasks, checkpoint, original, progress=progress, **opening)


def _say(record: dict[str, Any]) -> None:
    """What was found on a text."""
    intervals = record.get("intervals", {})
    for name in _FIGURES:
        if record.get(name) is not None:
            low_high = " ({:.6g} to {:.6g})".format(*intervals[name]) if name in intervals else ""
            click.echo(f"{name.replace('_', ' ') + ':':<20}{record[name]:.6g}{low_high}")
