"""`squeeze compare`."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from squeeze.commands import options, values
from squeeze.commands.echo import echo_lines
from squeeze.commands.models import use
from squeeze.commands.progress import bar
from squeeze.commands.reporting import write_page
from squeeze.commands.sections import command

if TYPE_CHECKING:
    from squeeze.recipes.measure.compare import Comparison


@command()
@click.argument("original", metavar="A", type=values.PATH)
@click.argument("model", metavar="B", type=values.PATH)
@click.option(
    "--prompts",
    required=True,
    metavar="FILE",
    type=values.PATH,
    help='Prompts: one per line, or .jsonl objects with "prompt" or "text"',
)
@click.option(
    "-n", "--tokens", default=64, type=click.IntRange(1), metavar="N", help="Tokens after each prompt; default: 64"
)
@options.chat
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
    texts = read_prompts(prompts)
    with bar(model.name, len(texts), unit=" prompts", quiet=quiet, as_json=as_json) as tick:
        result = run(original, model, texts, tokens=tokens, progress=tick, **opening)
    record = {"command": "compare", "original": str(original), "input": str(model), **result.as_json()}
    write_page(page, [record])
    if as_json:
        click.echo(json.dumps(record))
    elif not quiet:
        echo_lines(_text(result))


def _text(comparison: "Comparison") -> str:
    lines: list[str] = []
    for number, pair in enumerate(comparison.generations, 1):
        parted = "the same" if pair.identical else f"{pair.same} of {len(pair.kl)} tokens the same"
        lines += [f"[{number}] {pair.prompt}", f"  A: {pair.original}", f"  B: {pair.text}", f"  {parted}", ""]
    lines.append("Largest differences, at the token of A in brackets, with the token that B prefers:")
    for place in comparison.worst:
        lines.append(f"  [{place.number}] KL {place.kl:.4f}: {place.before!r} [{place.token!r}] {place.instead!r}")
    share = f"{100 * comparison.top1_agreement:.1f} % of {comparison.tokens} tokens"
    count = f"{comparison.identical} of {len(comparison.generations)} texts the same"
    whole = f"{count}, {100 * comparison.same:.1f} % before they part"
    kl = f"mean {comparison.kl_mean:.4f}, 99th percentile {comparison.kl_p99:.4f} nats"
    return "\n".join([*lines, "", f"KL from A: {kl}", f"same most probable token: {share}", f"greedy texts: {whole}"])
