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
@options.base
@options.resident
@options.caching
def generate(
    model: Path,
    prompt: str,
    tokens: int,
    draft: Path | None,
    kv: str | None,
    temperature: float,
    seed: int,
    base: Path | None,
    resident: int | None,
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
    network, tokenizer = generating.opened(model, device, resident, base)
    if draft is not None and (kv or kv_budget):
        raise SqueezeError("a draft needs transformers' own cache: use either --draft or --kv")
    cache = None if draft else cache_for(network, tokenizer, kv, kv_budget, calibrate)
    helper = generating.opened(draft, device)[0] if draft else None

    def show(piece: str) -> None:
        if not as_json:
            click.echo(piece, nl=False)

    generated = generating.generate(
        *(network, tokenizer, prompt),
        cache=cache,
        draft=helper,
        tokens=tokens,
        temperature=temperature,
        seed=seed,
        on_text=show,
    )
    if as_json:
        sizes = {"prompt_tokens": generated.prompt, "tokens": generated.tokens, "seconds": round(generated.seconds, 3)}
        if cache is None:
            details: dict[str, Any] = {"proposed": generated.proposed, "accepted": generated.accepted}
        else:
            details = {"kv_bytes": cache.nbytes, "policy": repr(cache.policy)}
        click.echo(json.dumps({"text": generated.text, **sizes, **details}))
        return
    click.echo()
    if not quiet:
        click.echo(memory_line(cache, generated) if cache is not None else _draft_line(generated), err=True)


def _draft_line(result: Any) -> str:
    share = 100 * result.accepted / max(result.proposed, 1)
    speed = result.tokens / max(result.seconds, 1e-9)
    return f"{result.tokens} tokens, {speed:.1f} a second; of the draft's {result.proposed} {share:.0f} % were accepted"
