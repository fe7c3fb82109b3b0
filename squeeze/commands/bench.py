"""`squeeze bench`."""

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from squeeze.cluster.engine import PROCESS, Call, Needs
from squeeze.commands import cluster as clusters, options, values
from squeeze.commands.echo import echo, echo_lines, explain
from squeeze.commands.progress import bar
from squeeze.commands.reporting import write_page
from squeeze.commands.sections import command
from squeeze.system import machine

if TYPE_CHECKING:
    from squeeze.recipes.measure.benchmark import Result


@command()
@options.levels
@click.option("--against", default="", metavar="NAMES", help="Other compressors: xz,zstd,brotli,bzip2,zpaq,lpaq1,7z")
@click.option(
    "--runs", default=1, type=click.IntRange(1), metavar="N", help="Runs, of which the fastest counts; default: 1"
)
@options.report
@options.threads
@click.option("--processes", is_flag=True, help="Time squeeze as a whole process as well, with start-up")
@clusters.cluster
@options.as_json
@click.argument("paths", nargs=-1, required=True, metavar="FILE...", type=values.PATH)
def bench(
    against: str,
    runs: int,
    page: Path | None,
    threads: int,
    processes: bool,
    cluster: str | None,
    as_json: bool,
    paths: tuple[Path, ...],
    levels: tuple[int, ...] = (),
) -> None:
    """Compare sizes and speeds with xz, zstd and others on your files.

    \b
    Example: squeeze bench -1 -3 --against xz,zpaq report.txt

    Every result is decompressed and compared with the original.
    """
    from squeeze.recipes.measure import benchmark

    threads = threads or (1 if cluster else machine.available_cores())
    rivals = [name for name in against.split(",") if name]
    tools, notes = benchmark.choose(levels, rivals, processes, threads)
    if cluster:
        needs = Needs(threads, 0, PROCESS + benchmark.memory(levels, rivals, threads))
        settings = (list(levels), rivals, processes, threads, runs)
        calls = [Call(path, f"bench {path.name}", benchmark.of_file, (path, *settings), needs) for path in paths]
        measured = _on_cluster(cluster, calls, benchmark.Result)
    else:
        measured = benchmark.measure(paths, tools, runs)
    for note in notes:
        click.echo(f"Note: {note}", err=True)
    results = []
    with bar("bench", len(paths) * len(tools), unit="", as_json=as_json) as tick:
        for result in measured:
            results.append(result)
            if result.error:
                echo(f"Error: {result.file}: {result.tool}: {result.error}", err=True)
            if as_json:
                click.echo(json.dumps(asdict(result)))
            tick.say(f"{result.tool} on {result.file}")
            tick(1)
    if not as_json:
        echo_lines(benchmark.table(results, runs, processes, threads))
    write_page(page, [asdict(result) for result in results])
    if any(result.error for result in results):
        raise click.exceptions.Exit(1)


def _on_cluster(cluster: str, calls: list[Call[Path]], failed: "type[Result]") -> "Iterator[Result]":
    """Measure each file in a call of its own.

    Args:
        cluster: The address of the cluster.
        calls: A call for each file, with the memory of the level that needs most.
        failed: Makes the result of a call that failed.
    """
    from squeeze.cluster.tasks import run_calls

    with closing(clusters.connected(cluster)) as engine:
        for outcome in run_calls(engine, calls):
            if outcome.error is None:
                yield from outcome.result
            else:
                yield failed(str(outcome.key), "all", 0, error=explain(outcome.error))
