"""`squeeze compare`."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from squeeze.commands import options
from squeeze.commands.echo import echo
from squeeze.commands.models import use
from squeeze.commands.progress import bar
from squeeze.commands.reporting import write_page
from squeeze.commands.sections import command

if TYPE_CHECKING:
    from squeeze.recipes.measure.compare import Comparison


@command()
@click.argument("original", metavar="A", type=options.PATH)
@click.argument("model", metavar="B", type=options.PATH)
@click.option(
    "--prompts",
    required=True,
    metavar="FILE",
    type=options.PATH,
    help='Prompts: one per line, or .jsonl objects with "prompt" or "text"',
)
@click.option(
    "-n", "--tokens", default=64, type=click.IntRange(1), metavar="N", help="Tokens after each prompt; default: 64"
)
@options.base
@options.resident
@options.computing
@options.report
@options.saying
def compare(
    original: Path,
    model: Path,
    prompts: Path,
    tokens: int,
    threads: int,
    page: Path | None,
    quiet: bool,
    as_json: bool,
    **opening: Any,
) -> None:
    """Compare what two models generate after the same prompts.

    \b
    Example: squeeze compare my-model my-model-4bit --prompts prompts.txt --report pairs.html

    A is the original model. KL divergence and agreement are measured along its greedy text, which both models read.
    """
    from squeeze.recipes.measure.compare import compare as run, read_prompts

    use(threads, opening["device"])
    asked = read_prompts(prompts)
    with bar(model.name, len(asked), unit=" prompts", quiet=quiet, as_json=as_json) as tick:
        found = run(original, model, asked, tokens=tokens, progress=tick, **opening)
    record = {"command": "compare", "original": str(original), "input": str(model), **found.as_json()}
    write_page(page, [record])
    if as_json:
        click.echo(json.dumps(record))
    elif not quiet:
        echo(_text(found))


def _text(found: "Comparison") -> str:
    lines: list[str] = []
    for number, pair in enumerate(found.generations, 1):
        parted = "the same" if pair.identical else f"{pair.same} of {len(pair.kl)} tokens the same"
        lines += [f"[{number}] {pair.prompt}", f"  A: {pair.original}", f"  B: {pair.text}", f"  {parted}", ""]
    lines.append("Farthest apart, at the token in brackets of A, with what B would write:")
    for place in found.worst:
        lines.append(f"  [{place.number}] KL {place.kl:.4f}: {place.before!r} [{place.token!r}] {place.instead!r}")
    share = f"{100 * found.top1_agreement:.1f} % of {found.tokens} tokens"
    whole = f"{found.identical} of {len(found.generations)} texts the same, {100 * found.same:.1f} % before they part"
    kl = f"mean {found.kl_mean:.4f}, 99th percentile {found.kl_p99:.4f} nats"
    return "\n".join([*lines, "", f"KL from A: {kl}", f"same most probable token: {share}", f"greedy texts: {whole}"])
