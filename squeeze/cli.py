"""The `squeeze` command. Each command parses, makes one library call and prints.

Only click and the standard library are imported here, so that `squeeze --help`
answers at once. What happens around each file is job.py's.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from squeeze import __version__
from squeeze.commands import factorize as factors
from squeeze.commands import kv as caches
from squeeze.commands import models, options, packing
from squeeze.commands import prune as pruning
from squeeze.commands.job import MISHAPS, Job, Tick, explain, progress, raw_size_of, size_of, transform
from squeeze.errors import SqueezeError
from squeeze.system import files

if TYPE_CHECKING:
    from squeeze.codecs.stream.index import Stream
    from squeeze.codecs.stream.totals import Totals

_SLOW = 60  # seconds of estimated work above which a run begins with a word about it
_PIECE = 1 << 20


class _Group(click.Group):
    """Turns exceptions into one line, and knows the one-letter names of two commands."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with files.interruptible():
                return super().invoke(ctx)
        except BrokenPipeError:
            raise  # click ends in silence when nobody reads on
        except (*MISHAPS, KeyboardInterrupt) as error:
            raise click.ClickException(explain(error)) from error

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, {"c": "compress", "d": "decompress"}.get(cmd_name, cmd_name))


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="squeeze")
def main() -> None:
    """Lossless compression with predictive models.

    `squeeze c` and `squeeze d` are short for compress and decompress. Without
    a file, or for the file -, standard input goes to standard output.
    """


@main.command()
@options.levels
@click.option("--no-verify", is_flag=True, help="Do not decode the result again to prove it.")
@click.option("--block-size", type=options.Size(), help="Bytes coded on their own, such as 4M.")
@options.model
@click.option("--lanes", type=click.IntRange(1), metavar="N", help="Parts of a text that -7 to -9 read side by side.")
@click.option("--window", type=click.IntRange(16), metavar="N", help="Tokens that -7 to -9 look back.")
@click.option(
    "--backend",
    type=click.Choice(["exact", "llamacpp"]),
    help="What runs the model: llamacpp takes any GGUF, but its files open on machines like this one only.",
)
@options.prior
@options.writing
def compress(
    no_verify: bool,
    block_size: int | None,
    model: Path | None,
    lanes: int | None,
    window: int | None,
    backend: str | None,
    prior: Path | None,
    levels: tuple[int, ...] = (),
    **common: Any,
) -> None:
    """Compress each FILE to FILE.sqz.

    Example: squeeze compress -8 report.txt
    """
    from squeeze.codecs.stream import levels as known
    from squeeze.codecs.stream.compressor import compress_stream
    from squeeze.codecs.stream.resources import LanguageOptions, as_dictionary
    from squeeze.codecs.stream.settings import choose
    from squeeze.numerics.jit import is_compiled

    job = Job(**common)
    verify = not no_verify or backend == "llamacpp"
    begun = as_dictionary(prior)
    default = begun.level if begun else known.DEFAULT
    row = known.level(levels[-1] if levels else default)
    level = row.number
    if job.stdout and sys.stdout.isatty():
        raise SqueezeError("compressed data is not written to a terminal; use -o or redirect it")
    sources = job.sources(lambda path: True)
    _warn_if_slow(job, level, [path for path in sources if path], verify)
    if row.needs_language_model and sys.stderr.isatty() and not is_compiled("code_steps"):
        job.say("The first run at this level compiles it for this processor, which takes about a minute.")
    if job.verbose and row.needs_language_model:
        size = max((path.stat().st_size for path in sources if path and path.exists()), default=known.DEFAULT_BLOCK)
        language = choose(row, job.threads, None, LanguageOptions(model, lanes, window, backend)).language
        if language:
            job.say(f"Level {level} will take about {language.memory(size) >> 20} MiB of memory.")

    def action(source: BinaryIO, sink: BinaryIO, tick: Tick) -> "Totals":
        return compress_stream(
            *(source, sink),
            level=level,
            threads=job.threads,
            verify=verify,
            block_size=block_size,
            model=model,
            lanes=lanes,
            window=window,
            backend=backend,
            dictionary=begun,
            progress=tick,
        )

    for path in sources:
        if path and path.suffix == files.SUFFIX and not job.force:
            job.say(f"Warning: {path}: already ends in {files.SUFFIX}; skipped (use -f to compress it)")
            continue
        with job.attempt(str(path or "-")):
            target = job.target(path, files.compressed_name)
            transform(job, path, target, action, size_of, passes=2 if verify else 1, level=level)
    job.finish()


def _warn_if_slow(job: Job, level: int, paths: list[Path], verify: bool) -> None:
    from squeeze.codecs.stream.levels import LEVELS, estimate_seconds

    size = sum(path.stat().st_size for path in paths if path.exists())
    seconds = estimate_seconds(level, size, job.threads, verify)
    if seconds > _SLOW:
        first = min(LEVELS)
        fastest = estimate_seconds(first, size, job.threads, verify)
        other = f"; -{first} would take about {fastest:.0f} s" if level != first else ""
        job.say(f"Level {level} will take about {seconds:.0f} s{other}.")


@main.command()
@click.option("--range", "span", type=options.Range(), metavar="A:B", help="Only these bytes of the content.")
@click.option("--salvage", is_flag=True, help="Restore what is undamaged, and say what is missing.")
@options.model
@options.prior
@options.writing
def decompress(
    span: tuple[int, int | None] | None, salvage: bool, model: Path | None, prior: Path | None, **common: Any
) -> None:
    """Restore each FILE.sqz to FILE.

    Example: squeeze decompress --range 0:100 report.txt.sqz
    """
    from squeeze.codecs.stream.decompressor import decompress_stream

    if span:
        common["stdout"] = common["stdout"] or common["output"] is None
        if salvage or common["rm"] or "-" in (common["files"] or ("-",)):
            raise click.UsageError("--range takes files, and neither --salvage nor --rm")
    job = Job(**common)
    _refuse_terminal(job)

    def action(source: BinaryIO, sink: BinaryIO, tick: Tick) -> "Totals":
        if span:
            return _copy_range(source, sink, *span, threads=job.threads, model=model, dictionary=prior)
        return decompress_stream(
            source, sink, threads=job.threads, model=model, dictionary=prior, progress=tick, salvage=salvage
        )

    for path in job.sources(_is_compressed):
        with job.attempt(str(path or "-")):
            transform(job, path, job.target(path, files.restored_name), action, raw_size_of)
    job.finish()


def _is_compressed(path: Path) -> bool:
    return path.suffix == files.SUFFIX


def _refuse_terminal(job: Job) -> None:
    if "-" in job.files and sys.stdin.isatty():
        raise SqueezeError("compressed data is not read from a terminal; name a file or redirect one")


def _copy_range(source: BinaryIO, sink: BinaryIO, start: int, end: int | None, **options: Any) -> "Totals":
    from squeeze.codecs.stream.reader import open as open_sqz
    from squeeze.codecs.stream.totals import Totals

    file = open_sqz(source, **options)
    file.seek(start)
    written = 0
    while piece := file.read(_PIECE if end is None else min(_PIECE, end - start - written)):
        written += sink.write(piece)
    return Totals(written, source.seek(0, 2))


@main.command()
@options.model
@options.prior
@options.reading
def test(model: Path | None, prior: Path | None, **common: Any) -> None:
    """Decode each FILE.sqz, compare its checksums, and write nothing.

    Example: squeeze test *.sqz
    """
    from squeeze.codecs.stream.decompressor import decompress_stream

    job = Job(**common, reads_only=True)
    _refuse_terminal(job)

    def action(source: BinaryIO, sink: BinaryIO, tick: Tick) -> "Totals":
        return decompress_stream(source, None, threads=job.threads, model=model, dictionary=prior, progress=tick)

    for path in job.sources(_is_compressed):
        with job.attempt(str(path or "-")):
            transform(job, path, None, action, raw_size_of)
    job.finish()


@main.command()
@options.levels
@click.option("-o", "--output", required=True, metavar="PRIOR", type=click.Path(path_type=Path), help="Write to this.")
@click.option("-f", "--force", is_flag=True, help="Overwrite PRIOR.")
@click.option("--text-size", type=options.Size(), help="The most bytes of samples that PRIOR holds; 112K.")
@click.option("--learn-size", type=options.Size(), help="The most bytes of samples that are learned from; 512K.")
@options.reading
def train(
    output: Path,
    force: bool,
    text_size: int | None,
    learn_size: int | None,
    levels: tuple[int, ...] = (),
    **common: Any,
) -> None:
    """Learn from sample FILEs what many small files like them begin with.

    Example: squeeze train -5 samples/*.json -o events.sqzp
    """
    from squeeze.codecs.stream import training

    job = Job(**common, reads_only=True)
    paths = [path for path in job.sources(lambda path: True) if path]
    if not paths or job.failed:
        raise SqueezeError("train reads sample files: name some")
    with progress(job, str(output), None) as tick:
        prior = training.train(
            paths,
            output,
            level=levels[-1] if levels else training.LEVEL,
            text_size=text_size or training.TEXT_SIZE,
            learn_size=learn_size or training.LEARN_SIZE,
            overwrite=force,
            progress=tick,
        )
    facts = {"output": str(output), "level": prior.level, "size": output.stat().st_size, "prior": prior.identity}
    if job.as_json:
        click.echo(json.dumps(facts))
    elif job.verbose or sys.stderr.isatty():
        job.say(f"{output}: {facts['size']} bytes, level {prior.level}, of {len(paths)} files")


@main.command(name="list")
@options.reading
def list_command(**common: Any) -> None:
    """Show sizes, level and checksum of each FILE.sqz, and with -v its blocks.

    Example: squeeze list -v report.txt.sqz
    """
    from squeeze.codecs.stream.index import read_index

    if "-" in (common["files"] or ("-",)):
        raise click.UsageError("list takes files: it reads their ends first")
    job = Job(**common, reads_only=True)
    if not job.as_json:
        click.echo(_ROW.format("compressed", "raw", "ratio", "level", "codec", "checksum", "file"))
    for path in job.sources(_is_compressed):
        with job.attempt(str(path)), path.open("rb") as file:  # type: ignore[union-attr]
            streams = read_index(file)
            _list_as_json(path, streams) if job.as_json else _list_as_text(path, streams, job.verbose)
    job.finish()


_ROW = "{:>12} {:>12} {:>7} {:>5} {:<16} {:<16} {}"
_BLOCK_ROW = "  {:>12} {:>12} {:>12} {:<9} {:<12} {}"


def _list_as_text(path: Path | None, streams: list["Stream"], verbose: bool) -> None:
    for stream in streams:
        ratio = f"{100 * stream.coded_size / stream.raw_size:.1f} %" if stream.raw_size else "-"
        codecs = ",".join(sorted({block.codec for block in stream.blocks})) or "-"
        checksum, level = f"{stream.checksum:016x}", stream.header.get("level", "-")
        click.echo(_ROW.format(stream.coded_size, stream.raw_size, ratio, level, codecs, checksum, path))
        if not verbose:
            continue
        settings = ", ".join(f"{name} {value}" for name, value in stream.header.items()) or "none"
        click.echo(f"  parameters: {settings}")
        click.echo(_BLOCK_ROW.format("raw offset", "raw length", "coded length", "codec", "content", "checksum"))
        for block in stream.blocks:
            row = (block.raw_offset, block.raw_length, block.coded_length, block.codec, block.content)
            click.echo(_BLOCK_ROW.format(*row, f"{block.checksum:016x}"))


def _list_as_json(path: Path | None, streams: list["Stream"]) -> None:
    shown = []
    for stream in streams:
        blocks = [
            asdict(block) | {"codec": block.codec, "checksum": f"{block.checksum:016x}"} for block in stream.blocks
        ]
        shown.append(asdict(stream) | {"blocks": blocks, "checksum": f"{stream.checksum:016x}"})
    click.echo(json.dumps({"file": str(path), "streams": shown}))


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def info(as_json: bool) -> None:
    """Show versions, processor, graphics processors, folders and models.

    Example: squeeze info --json
    """
    from squeeze.recipes.about import gather

    facts = gather()
    if as_json:
        click.echo(json.dumps(facts))
        return
    for name, value in facts.items():
        click.echo(
            f"{name.replace('_', ' ') + ':':<16} {', '.join(value) or 'none' if isinstance(value, list) else value}"
        )


@main.command()
@options.levels
@click.option("--against", default="", metavar="NAMES", help="Rivals: xz,zstd,brotli,bzip2,zpaq,lpaq1,7z.")
@click.option("--runs", default=1, type=click.IntRange(1), help="Take the shortest time of so many runs.")
@click.option("-T", "--threads", default=1, type=click.IntRange(1), metavar="N", help="Threads of squeeze.")
@click.option("--processes", is_flag=True, help="Time squeeze as a whole process too, with start-up.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a measurement.")
@click.argument("paths", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path))
def bench(
    against: str,
    runs: int,
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

    tools, notes = benchmark.choose(levels, [name for name in against.split(",") if name], processes, threads)
    for note in notes:
        click.echo(f"Note: {note}", err=True)
    results = []
    for result in benchmark.measure(paths, tools, runs):
        results.append(result)
        if result.error:
            click.echo(f"Error: {result.file}: {result.tool}: {result.error}", err=True)
        if as_json:
            click.echo(json.dumps(asdict(result)))
    if not as_json:
        click.echo(benchmark.table(results, runs, processes, threads))
    if any(result.error for result in results):
        raise click.exceptions.Exit(1)


for _command in (packing.pack, packing.unpack, packing.verify, packing.inspect):
    main.add_command(_command)
for _command in (models.import_, models.quantize, models.evaluate):
    main.add_command(_command)
for _command in (factors.factorize, models.densify):
    main.add_command(_command)
for _command in (caches.kv_eval, caches.generate):
    main.add_command(_command)
for _command in (pruning.prune, pruning.apply, pruning.advise):
    main.add_command(_command)
