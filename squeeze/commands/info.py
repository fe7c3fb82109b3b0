"""`squeeze info` and `squeeze completion`."""

import json

import click
from click.shell_completion import get_completion_class

from squeeze.commands import options
from squeeze.commands.sections import command
from squeeze.recipes.measure.info import gather


@command()
@click.option("--full", is_flag=True, help="Ask PyTorch about GPUs, and measure the installed size and the start-up")
@options.as_json
def info(full: bool, as_json: bool) -> None:
    """Show versions, hardware, folders and models.

    \b
    Example: squeeze info
             squeeze info --full --json

    With --full it also shows what runs on each GPU. The core bytes are the size on the disk of squeeze and of the
    packages that levels 1 to 9 need, without a language model. The start-up is that of `squeeze --version`.
    """
    facts = gather(full)
    if as_json:
        click.echo(json.dumps(facts))
        return
    for name, value in facts.items():
        click.echo(f"{name.replace('_', ' ') + ':':<17} {_shown(value)}")


def _shown(value: str | int | float | list[str]) -> str:
    if isinstance(value, list):
        return ", ".join(value) or "none"
    return f"{value:,}" if isinstance(value, int) else str(value)


@command()
@click.argument("shell", metavar="SHELL", type=click.Choice(("bash", "fish", "zsh")))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script for bash, fish or zsh.

    \b
    Example: squeeze completion bash >> ~/.bashrc

    The other shells read it from ~/.zshrc and from ~/.config/fish/completions/squeeze.fish.
    """
    kind = get_completion_class(shell)
    assert kind is not None  # click has these three
    click.echo(kind(ctx.find_root().command, {}, "squeeze", "_SQUEEZE_COMPLETE").source())
