"""The commands on checkpoints: pack, unpack, verify and inspect. Only click and the standard library are imported."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from squeeze.system import cores, files

if TYPE_CHECKING:
    from squeeze.packing.pack import Totals

Command = Callable[..., None]
_PATH = click.Path(path_type=Path)


def _shared(command: Command) -> Command:
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print one JSON object."),
        click.option("-q", "--quiet", is_flag=True, help="Say nothing but errors."),
        click.option(
            "-T", "--threads", metavar="N", type=click.IntRange(0), default=1, help="Threads; 0 for one a core."
        ),
        click.option("--base", metavar="OTHER", type=_PATH, help="The checkpoint that this one differs from."),
    ):
        command = option(command)
    return command


@click.command()
@click.argument("source", metavar="IN", type=_PATH)
@click.argument("target", metavar="OUT", type=_PATH)
@click.option(
    "--level",
    type=click.Choice(["runtime", "archive"]),
    default="runtime",
    help="runtime: decodes fast, on GPUs too (default). archive: smallest, slow.",
)
@click.option("-f", "--force", is_flag=True, help="Overwrite OUT.")
@click.option("--no-verify", is_flag=True, help="Do not decode each tensor again to prove it.")
@_shared
def pack(source: Path, target: Path, level: str, force: bool, no_verify: bool, **common: Any) -> None:
    """Pack a checkpoint without loss: a safetensors file, or a model's folder.

    A run that was stopped goes on from there when it is started again.

    Example: squeeze pack my-model my-model-packed
    """
    from squeeze.packing.pack import pack as run

    try:
        with _reporting(source, target, "pack", **common) as (options, done):
            done(run(source, target, level=level, verify=not no_verify, overwrite=force, **options))
    except KeyboardInterrupt:
        click.echo("Stopped; the same command goes on from here.", err=True)
        raise


@click.command()
@click.argument("source", metavar="IN", type=_PATH)
@click.argument("target", metavar="OUT", type=_PATH)
@click.option("-f", "--force", is_flag=True, help="Overwrite OUT.")
@_shared
def unpack(source: Path, target: Path, force: bool, **common: Any) -> None:
    """Restore a packed checkpoint, byte for byte.

    Example: squeeze unpack my-model-packed my-model
    """
    from squeeze.packing.unpack import unpack as run

    with _reporting(source, target, "unpack", **common) as (options, done):
        done(run(source, target, overwrite=force, **options))


@click.command()
@click.argument("source", metavar="IN", type=_PATH)
@_shared
def verify(source: Path, **common: Any) -> None:
    """Decode a packed checkpoint, compare every checksum, and write nothing.

    Example: squeeze verify my-model-packed
    """
    from squeeze.packing.unpack import verify as run

    with _reporting(source, None, "verify", **common) as (options, done):
        done(run(source, **options))


@click.command()
@click.argument("source", metavar="IN", type=_PATH)
@click.option(
    "--level",
    type=click.Choice(["runtime", "archive"]),
    default="runtime",
    help="How a checkpoint that is not packed is coded to learn its size.",
)
@_shared
def inspect(source: Path, level: str, base: Path | None, threads: int, quiet: bool, as_json: bool) -> None:
    """Show the entropy of each field, the bound, the coded size and the gap between, by tensor and dtype.

    Of a quantised checkpoint also the bits that a weight takes.

    Example: squeeze inspect model.safetensors
    """
    from squeeze.recipes import inspect as inspecting

    with _bar(source, quiet) as tick:
        options = {"level": level, "base": base, "threads": threads or cores.available()}
        entries = list(inspecting.inspect(source, progress=tick, **options))  # type: ignore[arg-type]
    quantised = inspecting.quantised(source)
    if as_json:
        parts = {"tensors": entries, "totals": inspecting.totals(entries)}
        found: dict[str, Any] = {key: [entry.as_json() for entry in value] for key, value in parts.items()}
        click.echo(json.dumps(found | ({"quantised": quantised} if quantised else {})))
        return
    click.echo(inspecting.table(entries))
    if quantised:
        click.echo(
            f"quantised in the format {quantised['format']}: {quantised['modules']} modules, "
            f"{quantised['bits_per_weight']:.3f} bits a weight"
        )


@contextmanager
def _reporting(
    source: Path, target: Path | None, what: str, *, base: Path | None, threads: int, quiet: bool, as_json: bool
) -> Iterator[tuple[dict[str, Any], Callable[["Totals"], None]]]:
    """Options for a library call, and a function that says what came of it."""
    started = time.perf_counter()

    def done(totals: "Totals") -> None:
        seconds = time.perf_counter() - started
        if as_json:
            record: dict[str, Any] = {"command": what, "input": str(source)}
            if target:
                record["output"] = str(target)
            sizes = {"raw_size": totals.raw, "coded_size": totals.coded, "seconds": round(seconds, 3)}
            click.echo(json.dumps({**record, **sizes}))
        if not quiet and sys.stderr.isatty():
            percent = f" ({100 * totals.coded / totals.raw:.2f} %)" if totals.raw else ""
            sizes_text = f"{totals.raw} bytes, packed {totals.coded}{percent}"
            click.echo(f"{source}: {sizes_text}, {seconds:.1f} s", err=True)

    with _bar(source, quiet) as tick:
        yield {"base": base, "threads": threads or cores.available(), "progress": tick}, done


@contextmanager
def _bar(source: Path, quiet: bool) -> Iterator[Callable[[int], None]]:
    """A bar with rate and time left on the terminal, if there is one."""
    from tqdm import tqdm

    def tick(count: int) -> None:
        if files.interrupted.is_set():
            raise KeyboardInterrupt
        bar.update(count)

    hidden = quiet or not sys.stderr.isatty()
    total = None if hidden else _raw_size(source)
    with tqdm(total=total, desc=source.name, unit="B", unit_scale=True, leave=False, disable=hidden) as bar:
        yield tick


def _raw_size(source: Path) -> int:
    """Raw bytes of a checkpoint, packed or not, as far as headers tell them."""
    from squeeze.checkpoint import safetensors as tensorfile
    from squeeze.errors import SqueezeError
    from squeeze.packing import container

    total = 0
    for path in source.rglob("*") if source.is_dir() else [source]:
        try:
            if path.suffix == ".safetensors":
                file = tensorfile.read(path)
                packed = container.is_packed(file)
                total += container.describe(file).description.size if packed else file.size
            elif path.is_file():
                total += path.stat().st_size
        except (SqueezeError, OSError):
            continue
    return total
