"""`squeeze compress --shards`: what is said of it, and what it takes beside its own options."""

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from squeeze.commands import options
from squeeze.commands.job import Job
from squeeze.errors import SqueezeError
from squeeze.system import files, storage

if TYPE_CHECKING:
    from squeeze.shards.template import Template
    from squeeze.shards.write import Shard

__all__ = ["option", "run", "template"]

option = options.several(
    click.option(
        "--shards",
        type=options.Size(),
        metavar="SIZE",
        help="With -r, put the files of a folder into tars of so many raw bytes, such as 1G: -o part-{}.tar.sqz.",
    ),
    click.option(
        "--train-dictionary",
        is_flag=True,
        help="Learn a dictionary from a sample of the files first; it lies beside the shards.",
    ),
)


def template(
    size: int | None, trains: bool, prior: Path | str | None, elsewhere: object, common: dict[str, Any]
) -> "Template | None":
    """What shards are to be called, from -o, which is taken out of what commands have in common; None where there are
    none."""
    if size is None:
        if trains:
            raise click.UsageError("--train-dictionary belongs to --shards")
        return None
    from squeeze.shards.template import Template

    if elsewhere or common["stdout"] or common["rm"]:
        raise click.UsageError("--shards takes neither --cluster nor --manifest, -c or --rm")
    if trains and prior:
        raise click.UsageError("--train-dictionary and -D exclude each other")
    if not common["recursive"] or len(common["files"]) != 1 or common["files"] == ("-",):
        raise click.UsageError("--shards takes one folder, and -r")
    if common["output"] is None or size < 1:
        raise click.UsageError("--shards takes a size, and -o with the name of a shard, such as part-{}.tar.sqz")
    return Template(common.pop("output"))


def run(job: Job, settings: dict[str, Any], targets: "Template", size: int, learns: tuple[int, ...] | None) -> None:
    """Write all files of a folder to shards. learns: the level of a dictionary to train first, where that was given;
    None for no training."""
    from squeeze.shards.write import listed, write_shards

    root = storage.path_of(job.files[0])
    if not root.is_dir():
        raise SqueezeError(f"{root}: is not a folder")
    targets.check(root)
    files.check_target(targets.path(0), [], job.force)
    if learns is not None:
        settings |= _learned(job, root, targets, learns)

    def failed(path: Path, error: Exception) -> None:
        with job.attempt(str(path)):
            raise error

    sources = listed((path for path in job.each(lambda path: True) if path), root, failed)
    count, started = 0, time.perf_counter()
    with job.progress(str(targets.place), passes=2 if settings["verify"] else 1) as tick:
        shards = write_shards(
            sources,
            targets,
            size,
            failed=failed,
            overwrite=job.force,
            **{**settings, "threads": job.threads, "progress": tick},
        )
        for shard in shards:
            count += 1
            _say(job, shard, int(settings["level"]), time.perf_counter() - started)
            started = time.perf_counter()
    if not count:
        raise SqueezeError(f"{root}: holds no files that can be read")
    if (left := targets.path(count)).exists():
        raise SqueezeError(f"{left}: is there from an earlier run, and not one of these shards: delete it")
    job.finish()


def _learned(job: Job, root: Path, targets: "Template", levels: tuple[int, ...]) -> dict[str, Any]:
    """What changes in the settings by a dictionary that is learned from a sample of a folder, and written."""
    from squeeze.codecs.stream import training
    from squeeze.shards.sample import sample
    from squeeze.shards.write import listed

    paths = files.expand(root, True, lambda path: files.reason_to_skip(path) is None, _nothing, _nothing)
    with job.progress(str(targets.dictionary)) as tick:
        level = levels[-1] if levels else training.LEVEL
        samples = sample(listed(paths, root, _nothing))
        known = training.train(samples, targets.dictionary, level=level, overwrite=job.force, progress=tick)
    return {"dictionary": known, "level": known.level}


def _nothing(*what: object) -> None:
    """Of what is left out, the run itself tells."""


def _say(job: Job, shard: "Shard", level: int, seconds: float) -> None:
    if job.as_json:
        facts = {"output": str(shard.path), "level": level, "members": shard.members, "raw_size": shard.raw}
        facts |= {"coded_size": shard.coded, "index_size": shard.index, "seconds": round(seconds, 3)}
        click.echo(json.dumps(facts))
    if job.verbose or sys.stderr.isatty():
        percent = f"{100 * shard.coded / shard.raw:.1f} %"
        job.say(f"{shard.path}: {shard.members} files, {shard.raw} -> {shard.coded} bytes ({percent}), {seconds:.1f} s")
