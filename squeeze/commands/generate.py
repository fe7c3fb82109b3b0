"""`squeeze generate`."""

import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import click

from squeeze.commands import options, values
from squeeze.commands.echo import echo
from squeeze.commands.models import use
from squeeze.commands.sections import command, in_section
from squeeze.errors import SqueezeError

_kv = in_section(
    options.KV,
    click.option("--kv", metavar="BITS|POLICY", help="Bits, a policy such as rotated:3, or its file; default: bf16"),
    click.option(
        "--kv-file",
        metavar="FILE",
        type=values.PATH,
        help="File for the prompt's cache; reused if the prompt begins alike",
    ),
)


@command()
@click.argument("model", metavar="MODEL", type=values.PATH)
@click.argument("prompt", metavar="PROMPT")
@click.option(
    "-n", "--tokens", default=100, type=click.IntRange(1), metavar="N", help="Tokens to generate; default: 100"
)
@click.option("--draft", metavar="MODEL", type=values.PATH, help="Smaller model for speculative decoding")
@options.chat
@_kv
@click.option(
    "--temperature",
    default=0.0,
    type=click.FloatRange(0),
    metavar="X",
    help="Sampling temperature, 0 for greedy; default: 0",
)
@click.option("--seed", default=0, metavar="N", help="Random seed; default: 0")
@options.base
@options.resident
@click.option(
    "--product",
    type=click.Choice(["exact", "fused"]),
    help="Matrix products: exact, or fused with decoding, faster (packed models only)",
)
@options.caching
def generate(
    model: Path,
    prompt: str,
    tokens: int,
    draft: Path | None,
    kv: str | None,
    kv_file: Path | None,
    as_json: bool,
    quiet: bool,
    threads: int,
    calibration: Path | None,
    kv_budget: float | None,
    temperature: float,
    seed: int,
    chat: bool,
    **opening: Any,
) -> None:
    """Generate text with a model, also with a compressed KV cache.

    \b
    Example: squeeze generate my-model "Once upon a time" --kv 4

    The text is printed token by token. The last line says how much memory the KV cache took.
    """
    from squeeze.recipes.measure import generate as generating
    from squeeze.recipes.measure.kv_policies import cache_for, memory_line

    use(threads, opening["device"])
    if draft and kv_file:
        raise SqueezeError("--draft needs an empty cache: use either --draft or --kv-file")
    network, tokenizer = generating.opened(model, **opening)
    prompt = generating.chat_prompt(tokenizer, prompt) if chat else prompt
    helper = generating.opened(draft, opening["device"])[0] if draft else None
    is_coded, prompt_length = bool(kv or kv_budget), 0
    cache = cache_for(network, tokenizer, kv, kv_budget, calibration) if is_coded or kv_file else None
    if cache is not None and cache.policy.archives and kv_file is None:
        raise SqueezeError("an archive makes the file of a prompt small: name one with --kv-file")
    if kv_file is not None and cache is not None:
        cache, prompt_length = generating.prompt_cache(kv_file, network, tokenizer, prompt, tokens, cache, is_coded)

    result = sys.stdout  # transformers prints warnings for some models, such as Reformer
    show = (lambda piece: None) if as_json else (lambda piece: click.echo(piece, nl=False, file=result))
    with redirect_stdout(sys.stderr):
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
        from_file = {"tokens_from_file": prompt_length} if kv_file else {}
        click.echo(json.dumps(_described(generated, cache, bool(draft)) | from_file))
        return
    click.echo()
    if not quiet:
        lines = [memory_line(generated)] if cache is not None or not draft else []
        lines += [_draft_line(generated)] if draft else []
        lines += [_file_line(kv_file, prompt_length)] if kv_file else []
        for line in lines:
            echo(line, err=True)


def _described(generated: Any, cache: Any, drafted: bool) -> dict[str, Any]:
    """Return the text and what it took, for --json."""
    found = {"text": generated.text, "prompt_tokens": generated.prompt, "tokens": generated.tokens}
    found["seconds"] = round(generated.seconds, 3)
    if drafted:
        found |= {"proposed": generated.proposed, "accepted": generated.accepted}
    if generated.cache is not None:
        found |= {"kv_bytes": generated.cache_bytes}
    return found if cache is None else found | {"policy": repr(cache.policy)}


def _draft_line(result: Any) -> str:
    share = 100 * result.accepted / max(result.proposed, 1)
    speed = result.tokens / max(result.seconds, 1e-9)
    drafted = f"{share:.0f} % of the draft's {result.proposed} tokens were accepted"
    return f"{result.tokens} tokens, {speed:.1f} a second; {drafted}"


def _file_line(path: Path, taken: int) -> str:
    return (
        f"{path}: {taken} tokens of the prompt were read from it"
        if taken
        else f"{path}: the prompt's cache is written to it"
    )
