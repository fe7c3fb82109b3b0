"""`squeeze list`."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from squeeze.commands import options
from squeeze.commands.echo import echo
from squeeze.commands.job import Job, is_compressed
from squeeze.commands.sections import command
from squeeze.errors import escaped, printable

if TYPE_CHECKING:
    from squeeze.codecs.stream.contents import Contents
    from squeeze.codecs.stream.index import Stream
    from squeeze.codecs.stream.members import Member


@command(name="list")
@options.reading
def list_command(**common: Any) -> None:
    """Show sizes, ratio, level and members of compressed files.

    \b
    Example: squeeze list photos.tar.sqz
             squeeze list -v report.txt.sqz

    With -v the blocks are listed as well, with what was opened in them. Nothing is decompressed, except the list of
    members and, with -v or --json, the plans of opened blocks.
    """
    from squeeze.codecs.stream.index import read_index
    from squeeze.codecs.stream.members import read_members, read_tail

    if "-" in (common["files"] or ("-",)):
        raise click.UsageError("list takes files, not standard input: it reads their ends first")
    job = Job(**common, reads_only=True)
    if not job.as_json:
        click.echo(_ROW.format("compressed", "raw", "ratio", "level", "codec", "checksum", "file"))
    for path in job.sources(is_compressed):
        with job.attempt(str(path)), path.open("rb") as file:  # type: ignore[union-attr]
            streams = read_index(file)
            beside = read_members(path) if path else None
            found = beside or read_tail(file, streams)
            members = list(found.by_name.values()) if found else []
            opened = _opened_in(file, streams) if job.as_json or job.verbose else {}
            if job.as_json:
                _list_as_json(path, streams, members, opened)
            else:
                content = streams if beside or job.verbose or not found else streams[:-1]  # without the index
                _list_as_text(path, content, job.verbose, opened)
                _list_members(members)
    job.finish()


_OPENING = ("opened", "repeats")  # codecs of blocks that may have opened wrappers
_ROW = "{:>12} {:>12} {:>7} {:>5} {:<16} {:<16} {}"
_MEMBER_ROW = "  {:>12} {:>12} {:<16} {}"
_GROUP_ROW = "      {:>12} {:>12} {:<9} {}"
_BLOCK_ROW = "  {:>12} {:>12} {:>12} {:<9} {:<12} {}"


def _opened_in(file: BinaryIO, streams: list["Stream"]) -> dict[int, "Contents"]:
    """Return what was opened in the blocks of a file, by their raw offsets."""
    if not any(block.codec in _OPENING for stream in streams for block in stream.blocks):
        return {}
    from squeeze.codecs.stream.summing import contents_in  # with compiled code, which other files do without

    return contents_in(file, streams)


def _digits(checksum: int, stream: "Stream") -> str:
    """Return a checksum in hexadecimal digits, of which a short stream keeps half."""
    return f"{checksum:08x}" if stream.short else f"{checksum:016x}"


def _list_as_text(path: Path | None, streams: list["Stream"], verbose: bool, opened: Mapping[int, "Contents"]) -> None:
    for stream in streams:
        ratio = f"{100 * stream.coded_size / stream.raw_size:.1f} %" if stream.raw_size else "-"
        codecs = ",".join(sorted({block.codec for block in stream.blocks})) or "-"
        checksum, level = _digits(stream.checksum, stream), printable(stream.header.get("level", "-"))
        echo(_ROW.format(stream.coded_size, stream.raw_size, ratio, level, codecs, checksum, escaped(str(path))))
        if not verbose:
            continue
        shown = (f"{printable(name)} {printable(value)}" for name, value in stream.header.items())
        echo(f"  parameters: {', '.join(shown) or 'none'}")
        click.echo(_BLOCK_ROW.format("raw offset", "raw length", "coded length", "codec", "content", "checksum"))
        for block in stream.blocks:
            row = (block.raw_offset, block.raw_length, block.coded_length, block.codec, block.content)
            click.echo(_BLOCK_ROW.format(*row, _digits(block.checksum, stream)))
            for start, end in block.sources:
                click.echo(f"  {'':>12} repeats bytes {start} to {end}")
            if block.codec in _OPENING and block.raw_offset in opened:
                _list_contents(opened[block.raw_offset])


def _list_contents(contents: "Contents") -> None:
    click.echo(f"      {contents}")
    click.echo(_GROUP_ROW.format("opened", "coded", "codec", "content"))
    for group in contents.groups:
        click.echo(_GROUP_ROW.format(group.opened, group.coded, group.codec, group.content))
    click.echo(_GROUP_ROW.format("", contents.plan_size, "", "closing of wrappers"))


def _list_members(members: list["Member"]) -> None:
    if members:
        click.echo(_MEMBER_ROW.format("raw offset", "raw length", "checksum", "member"))
    for member in members:
        echo(_MEMBER_ROW.format(member.offset, member.size, f"{member.checksum:016x}", member.name))


def _list_as_json(
    path: Path | None, streams: list["Stream"], members: list["Member"], opened: Mapping[int, "Contents"]
) -> None:
    shown = []
    for stream in streams:
        blocks = [
            asdict(block)
            | {"codec": block.codec, "checksum": _digits(block.checksum, stream)}
            | (
                {"opened": opened[block.raw_offset].as_json()}
                if block.raw_offset in opened and block.codec in _OPENING
                else {}
            )
            for block in stream.blocks
        ]
        shown.append(asdict(stream) | {"blocks": blocks, "checksum": _digits(stream.checksum, stream)})
    named = [member._asdict() | {"checksum": f"{member.checksum:016x}"} for member in members]
    click.echo(json.dumps({"file": str(path), "streams": shown, **({"members": named} if named else {})}))
