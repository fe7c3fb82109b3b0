"""What commands print: lines in which whatever a file says, or is called, stands escaped."""

import sys

import click

from squeeze.errors import escaped

__all__ = ["echo", "mention"]


def echo(text: str, *, err: bool = False) -> None:
    """Print lines. Control codes and halves of characters, which a terminal obeys or refuses, are shown by number."""
    for line in text.split("\n"):
        click.echo(escaped(line), err=err)


def mention(text: str) -> None:
    """Print lines on standard error in the middle of a run: above its progress, if that is shown."""
    if tqdm := sys.modules.get("tqdm"):
        with tqdm.tqdm.external_write_mode(file=sys.stderr):
            echo(text, err=True)
    else:
        echo(text, err=True)
