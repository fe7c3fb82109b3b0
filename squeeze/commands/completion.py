"""`squeeze completion`."""

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", metavar="SHELL", type=click.Choice(("bash", "fish", "zsh")))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print what lets a shell complete commands and options: bash, fish or zsh.

    The shell reads it at its start, from ~/.bashrc, ~/.zshrc or ~/.config/fish/completions/squeeze.fish.

    Example: squeeze completion bash >> ~/.bashrc
    """
    kind = get_completion_class(shell)
    assert kind is not None  # click has these three
    click.echo(kind(ctx.find_root().command, {}, "squeeze", "_SQUEEZE_COMPLETE").source())
