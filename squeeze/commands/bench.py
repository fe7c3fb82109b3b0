"""`squeeze bench`."""

import json
from dataclasses import asdict
from pathlib import Path

import click

from squeeze.commands import options
from squeeze.commands.echo import echo
from squeeze.commands.progress import bar
from squeeze.commands.reporting import write_page
from squeeze.system import cores


@click.command()
@options.levels
@click.option("--against", default="", metavar="NAMES", help="Rivals: xz,zstd,brotli,bzip2,zpaq,lpaq1,7z.")
@click.option("--runs", default=1, type=click.IntRange(1), help="Take the shortest time of so many runs.")
@options.report
@options.threads
@click.option("--processes", is_flag=True, help="Time squeeze as a whole process too, with start-up.")
@options.as_json
@click.argument("paths", nargs=-1, required=True, metavar="FILE...", type=options.PATH)
def bench(
    against: str,
    runs: int,
    page: Path | None,
    threads: int,
    processes: bool,
    as_json: bool,
    paths: tuple[Path, ...],
    levels: tuple[int, ...] = (),
) -> None:
    """Compare sizes and speeds on each FILE, every round trip proved.

    Example: squeeze bench -1 -3 --against xz,zpaq report.txt
    """
    from squeeze.recipes import benchmark

    threads = threads or cores.available()
    tools, notes = benchmark.choose(levels, [name for name in against.split(",") if name], processes, threads)
    for note in notes:
        click.echo(f"Note: {note}", err=True)
    results = []
    with bar("bench", len(paths) * len(tools), unit="", as_json=as_json) as tick:
        for result in benchmark.measure(paths, tools, runs):
            results.append(result)
            if result.error:
                echo(f"Error: {result.file}: {result.tool}: {result.error}", err=True)
            if as_json:
                click.echo(json.dumps(asdict(result)))
            tick.say(f"{result.tool} on {result.file}")
            tick(1)
    if not as_json:
        echo(benchmark.table(results, runs, processes, threads))
    write_page(page, [asdict(result) for result in results])
    if any(result.error for result in results):
        raise click.exceptions.Exit(1)
