"""`squeeze info`."""

import json

import click

from squeeze.commands import options


@click.command()
@options.as_json
def info(as_json: bool) -> None:
    """Show versions, CPU, GPUs, folders and models.

    The core bytes are what squeeze and the packages it needs at levels 1 to 9 take on the disk, without a language
    model. The start-up is that of `squeeze --version`, the shortest of three runs.

    Example: squeeze info --json
    """
    from squeeze.recipes.measure.about import gather

    facts = gather()
    if as_json:
        click.echo(json.dumps(facts))
        return
    for name, value in facts.items():
        click.echo(f"{name.replace('_', ' ') + ':':<17} {_shown(value)}")


def _shown(value: str | int | float | list[str]) -> str:
    if isinstance(value, list):
        return ", ".join(value) or "none"
    return f"{value:,}" if isinstance(value, int) else str(value)
