"""`squeeze generate`."""

import json
from pathlib import Path
from typing import Any

import click

from squeeze.commands import options
from squeeze.commands.models import use
from squeeze.errors import SqueezeError


@click.command()
@click.argument("model", metavar="MODEL", type=options.PATH)
@click.argument("prompt", metavar="PROMPT")
@click.option("-n", "--tokens", default=100, type=click.IntRange(1), metavar="N", help="Tokens to generate (100).")
@click.option(
    "--draft", metavar="MODEL", type=options.PATH, help="A smaller model that suggests tokens; the text stays the same."
)
@click.option("--kv", metavar="BITS|POLICY", help="Code the KV cache: 4, a policy such as rotated:3, or its file.")
@click.option("--temperature", default=0.0, type=click.FloatRange(0), metavar="X", help="0 takes the likeliest.")
@click.option("--seed", default=0, metavar="N", help="Of sampling.")
@options.caching
def generate(
    model: Path,
    prompt: str,
    tokens: int,
    draft: Path | None,
    kv: str | None,
    temperature: float,
    seed: int,
    as_json: bool,
    quiet: bool,
    threads: int,
    device: str,
    calibrate: Path | None,
    kv_budget: float | None,
) -> None:
    """Continue PROMPT, as it comes; with --kv, in less memory. What memory that was is said at the end.

    Example: squeeze generate my-model "Once upon a time" --kv 4
    """
    from squeeze.recipes import generate as generating
    from squeeze.recipes.kv_eval import cache_for, memory_line

    use(threads)
    network, tokenizer = generating.opened(model, device)
    if draft is not None and (kv or kv_budget):
        raise SqueezeError("a draft needs transformers' own cache: use either --draft or --kv")
    cache = None if draft else cache_for(network, tokenizer, kv, kv_budget, calibrate)
    helper = generating.opened(draft, device)[0] if draft else None

    def show(piece: str) -> None:
        if not as_json:
            click.echo(piece, nl=False)

    found = generating.generate(
        *(network, tokenizer, prompt),
        cache=cache,
        draft=helper,
        tokens=tokens,
        temperature=temperature,
        seed=seed,
        on_text=show,
    )
    if as_json:
        sizes = {"prompt_tokens": found.prompt, "tokens": found.tokens, "seconds": round(found.seconds, 3)}
        if cache is None:
            more: dict[str, Any] = {"proposed": found.proposed, "accepted": found.accepted}
        else:
            more = {"kv_bytes": cache.nbytes, "policy": repr(cache.policy)}
        click.echo(json.dumps({"text": found.text, **sizes, **more}))
        return
    click.echo()
    if not quiet:
        click.echo(memory_line(cache, found) if cache is not None else _draft_line(found), err=True)


def _draft_line(found: Any) -> str:
    share = 100 * found.accepted / max(found.proposed, 1)
    speed = found.tokens / max(found.seconds, 1e-9)
    return f"{found.tokens} tokens, {speed:.1f} a second; of the draft's {found.proposed} {share:.0f} % were accepted"
