"""`squeeze eval`."""

import json
from collections.abc import Iterator
from contextlib import closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from squeeze.cluster.engine import Call, Engine, Needs
from squeeze.commands import cluster as clusters, options, values
from squeeze.commands.echo import echo, explain
from squeeze.commands.models import tasks_of, use, worse_on_quality_error
from squeeze.commands.progress import bar, steps
from squeeze.commands.reporting import write_page
from squeeze.commands.sections import command
from squeeze.engine.output_quality import OutputQuality
from squeeze.engine.tasks import TaskScore, check_drops
from squeeze.errors import SqueezeError

if TYPE_CHECKING:
    from squeeze.recipes.measure.tasks import Tasks

_LEAST_MEMORY = 1 << 30  # bytes of a worker without the models
_FIGURES = ("perplexity", "tokens", "tokens_per_second", "kl_mean", "kl_p99", "top1_agreement", "ratio")


@command(name="eval")
@click.argument("checkpoints", metavar="CKPT...", nargs=-1, required=True, type=values.PATH)
@click.option("--text", metavar="FILE", type=values.PATH, help="Text to predict")
@click.option(
    "--original", metavar="CKPT", type=values.PATH, help="Original model, to measure KL divergence and agreement"
)
@click.option("--inputs", metavar="PATH", type=values.PATH, help=options.INPUTS)
@click.option("--window", metavar="N", type=click.IntRange(2), help="Tokens per window; default: 1024")
@click.option("--stride", metavar="N", type=click.IntRange(1), help="Tokens between window starts; default: --window")
@click.option("--windows", metavar="N", type=click.IntRange(1), help="Windows to measure; default: all")
@click.option(
    "--activations",
    metavar="GRID",
    help="Round matrices' inputs, as a simulation: int8, fp6-e2m3 or int4,outliers=32, for example (--text only)",
)
@options.scoring
@options.max_task_drop
@options.base
@options.resident
@clusters.cluster
@options.computing
@options.report
@options.saying
def evaluate(
    checkpoints: tuple[Path, ...],
    original: Path | None,
    max_task_drop: float | None,
    page: Path | None,
    cluster: str | None,
    **params: Any,
) -> None:
    """Measure perplexity, KL divergence, output errors and task scores.

    \b
    Example: squeeze eval my-model-4bit --original my-model --text wiki.txt
             squeeze eval my-model-4bit --original my-model --tasks hellaswag,arc_easy
             squeeze eval my-encoder-4bit --original my-encoder --inputs wiki.txt

    --inputs is for models without a perplexity, such as encoders: their outputs are compared with the original's.
    Tasks are those of lm-eval. Their data comes from the Hugging Face Hub or from --task-folder.
    """
    tasks = tasks_of(params)
    _check_wanted(original, tasks, max_task_drop, params)
    threads = params.pop("threads")
    records, failed = [], False
    with closing(clusters.connected(cluster)) if cluster else nullcontext() as engine:
        if engine:
            found = _on_cluster(engine, checkpoints, original, tasks, threads or 1, params)
        else:
            use(threads, params["device"])
            found = ((one, measured(one, original, tasks, params), None) for one in checkpoints)
        for checkpoint, record, error in found:
            if record is None:
                failed = True
                click.echo(f"Error: {explain(error or SqueezeError(), str(checkpoint))}", err=True)
                continue
            records.append(record)
            if params["as_json"]:
                click.echo(json.dumps(record))
            else:
                _say(record, named=len(checkpoints) > 1)
    if records:
        write_page(page, records)
    if failed:
        raise click.exceptions.Exit(1)
    if max_task_drop is not None:
        for record in records:
            with worse_on_quality_error():
                check_drops(record["input"], [TaskScore.from_json(one) for one in record["tasks"]], max_task_drop)


def _check_wanted(
    original: Path | None, tasks: "Tasks | None", max_task_drop: float | None, params: dict[str, Any]
) -> None:
    """Raise UsageError if options do not fit each other."""
    if tasks is None and params["text"] is None and params["inputs"] is None:
        raise click.UsageError("give --text FILE, --inputs PATH, --tasks NAMES, or several")
    if params["inputs"] is not None and original is None:
        raise click.UsageError("--inputs needs --original")
    if params["activations"] is not None and (params["text"] is None or tasks is not None or params["inputs"]):
        raise click.UsageError("--activations needs --text, and neither --tasks nor --inputs")
    if max_task_drop is not None and (tasks is None or original is None):
        raise click.UsageError("--max-task-drop needs --tasks and --original")


def measured(checkpoint: Path, original: Path | None, tasks: "Tasks | None", params: dict[str, Any]) -> dict[str, Any]:
    """Return all measurements of one model."""
    record: dict[str, Any] = {"command": "eval", "input": str(checkpoint)}
    if params["text"] is not None:
        record |= _on_text(checkpoint, original, **params)
    if params["inputs"] is not None and original is not None:
        record["outputs"] = _on_inputs(checkpoint, original, **params)
    if tasks is not None:
        record["tasks"] = [score.as_json() for score in _on_tasks(tasks, checkpoint, original, **params)]
    return record


def _by_a_worker(threads: int, *arguments: Any) -> dict[str, Any]:
    use(threads, arguments[-1]["device"])
    return measured(*arguments)


def _on_cluster(
    engine: Engine[Path],
    checkpoints: tuple[Path, ...],
    original: Path | None,
    tasks: "Tasks | None",
    threads: int,
    params: dict[str, Any],
) -> Iterator[tuple[Path, dict[str, Any] | None, BaseException | None]]:
    from squeeze.cluster.tasks import run_calls
    from squeeze.packing.folder import raw_size

    base_memory = _LEAST_MEMORY + (raw_size(original) if original else 0)
    gpus = 1 if params["device"].startswith("cuda") else 0
    silent = params | {"quiet": True}

    def calls() -> Iterator[Call[Path]]:
        for one in checkpoints:
            needs = Needs(threads, gpus, base_memory + raw_size(one))
            yield Call(one, f"eval {one.name}", _by_a_worker, (threads, one, original, tasks, silent), needs)

    with bar("eval", len(checkpoints), unit="", quiet=params["quiet"], as_json=params["as_json"]) as tick:
        for outcome in run_calls(engine, calls()):
            tick(1)
            yield outcome.key, outcome.result, outcome.error


def _on_text(
    checkpoint: Path,
    original: Path | None,
    *,
    text: Path,
    window: int | None,
    stride: int | None,
    windows: int | None,
    quiet: bool,
    as_json: bool,
    inputs: Path | None,
    activations: str | None,
    **opening: Any,
) -> dict[str, Any]:
    from squeeze.recipes.measure import evaluate as evaluating

    tokens, model, reference = evaluating.opened(checkpoint, text, original, activations=activations, **opening)
    requested, window = window, evaluating.window_for(model, reference, requested=window)
    if requested is None and window < evaluating.WINDOW and not quiet:
        echo(f"{checkpoint}: windows of {window} tokens: the model has no more positions", err=True)
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
            on_perplexity=lambda perplexity: tick.say(f"perplexity {perplexity:.4g}"),
        )
    rounded = {"activations": activations} if activations is not None else {}
    return {"text": str(text), "window": window, **rounded, **quality.as_json()}


def _on_inputs(
    checkpoint: Path,
    original: Path,
    *,
    inputs: Path,
    device: str,
    base: Path | None,
    quiet: bool,
    as_json: bool,
    **_: Any,
) -> list[dict[str, Any]]:
    from squeeze.recipes.measure.outputs import output_qualities

    with steps(f"{checkpoint.name}: outputs", unit=" samples", quiet=quiet, as_json=as_json) as progress:
        done = 0

        def tick(count: int) -> None:
            nonlocal done
            done += count
            progress("outputs", done, done)

        return [one.as_json() for one in output_qualities(checkpoint, original, inputs, device, None, tick, base)]


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
) -> list[TaskScore]:
    opening: dict[str, Any] = {"device": device, "resident": resident, "base": base}
    stopped_note = "its measurements are lost."
    with steps(
        f"{checkpoint.name}: tasks", unit=" answers", stopped_note=stopped_note, quiet=quiet, as_json=as_json
    ) as progress:
        return tasks.scores(checkpoint, original, progress=progress, **opening)


def _say(record: dict[str, Any], named: bool) -> None:
    """Print the measurements on a text and on tasks."""
    if named:
        echo(f"{record['input']}:")
    if "activations" in record:
        echo(f"{'activations:':<20}{record['activations']}, simulated")
    intervals = record.get("intervals", {})
    for name in _FIGURES:
        if record.get(name) is not None:
            low_high = " ({:.6g} to {:.6g})".format(*intervals[name]) if name in intervals else ""
            click.echo(f"{name.replace('_', ' ') + ':':<20}{record[name]:.6g}{low_high}")
    for one in record.get("outputs", ()):
        quality = OutputQuality(**one)
        click.echo(f"{quality.name + ':':<20}{quality}")
    if record.get("tasks"):
        for score in map(TaskScore.from_json, record["tasks"]):
            click.echo(f"{score.task + ':':<20}{score}")
