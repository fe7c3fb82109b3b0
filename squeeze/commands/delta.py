"""`squeeze delta`."""

from pathlib import Path
from typing import Any

import click

from squeeze.commands import options
from squeeze.commands.declared import OperationCommand, given
from squeeze.commands.models import Verdict, say_estimate, use
from squeeze.commands.progress import steps
from squeeze.recipes.options import DELTA
from squeeze.system import machine


@click.command(cls=OperationCommand, operation=DELTA)
@click.argument("base", metavar="BASE", type=options.PATH)
@options.compressing
def delta(
    base: Path,
    source: Path,
    target: Path,
    force: bool,
    threads: int,
    quiet: bool,
    as_json: bool,
    **params: Any,
) -> None:
    """Write a fine-tune as its difference from a base, and report what it cost.

    IN is the fine-tune. The differences of its matrices are rounded to --bits, pruned to --pattern, or both, so that
    layers give the fine-tune's outputs; those of embeddings and heads are rounded, and all other tensors are kept
    exactly. OUT loads in transformers beside its base, and models on one base share its weights in memory.

    Example: squeeze delta my-model my-model-tuned my-model-delta --bits 2 --pattern 2:4 --calibration chats.txt
    """
    from squeeze.recipes import delta as api

    use(threads, params["device"])
    verdict, asked_for = Verdict.taken_from(params), given(DELTA, params)
    if verdict.tasks is not None:
        raise click.UsageError("a difference is scored once it is written: squeeze eval OUT --base BASE --tasks NAMES")
    settings = DELTA.read(asked_for).settings
    if not quiet:
        say_estimate(source, settings, settings.correction, params["device"], True)
    shared = {
        "text": verdict.text,
        "windows": verdict.windows,
        "threads": threads or machine.available_cores(),
        **params,
    }
    with steps(target.name, quiet=quiet, as_json=as_json) as progress:
        report = api.delta(base, source, out=target, overwrite=force, progress=progress, **asked_for, **shared)
    verdict.conclude(report, as_json, quiet)
