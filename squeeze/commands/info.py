"""`squeeze info`."""

import json

import click

from squeeze.commands import options


@click.command()
@options.as_json
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
