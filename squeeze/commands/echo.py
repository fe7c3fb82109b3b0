"""What commands print: lines in which whatever a file says, or is called, stands escaped."""

import click

from squeeze.errors import escaped

__all__ = ["echo"]


def echo(text: str, *, err: bool = False) -> None:
    """Print lines. Control codes and halves of characters, which a terminal obeys or refuses, are shown by number."""
    for line in text.split("\n"):
        click.echo(escaped(line), err=err)
