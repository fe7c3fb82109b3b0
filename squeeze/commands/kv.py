"""The commands on KV caches: kv-eval and generate. Only click and the standard library are imported."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from squeeze.commands.model_options import bar, use
from squeeze.errors import SqueezeError

_PATH = click.Path(path_type=Path)
_ROW = "{:<28} {:>7} {:>8} {:>10} {:>9} {:>10} {:>12} {:>12} {:>9} {:>8}"
_HEAD = ("policy", "context", "bits", "perplexity", "%", "KL", "cache bytes", "peak bytes", "ms/token", "passkeys")


def _shared(command: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print JSON objects."),
        click.option("-q", "--quiet", is_flag=True, help="Say nothing but errors."),
        click.option(
            "-T", "--threads", metavar="N", type=click.IntRange(0), default=0, help="Threads; 0 for one a core."
        ),
        click.option("--device", default="cpu", metavar="NAME", help="cpu (default), cuda, ..."),
        click.option("--calibrate", metavar="FILE", type=_PATH, help="A text to calibrate on."),
        click.option(
            "--kv-budget",
            metavar="SHARE",
            type=click.FloatRange(0, 1, min_open=True),
            help="Share of 16 bits a value; the calibration spreads it over heads.",
        ),
    ):
        command = option(command)
    return command


@click.command(name="kv-eval")
@click.argument("model", metavar="MODEL", type=_PATH)
@click.option("--text", required=True, metavar="FILE", type=_PATH, help="The text to predict.")
@click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="POLICY",
    help="kivi:4, rotated:3,window=128, kivi:mean=3, kivi:2+snapkv:512, transform:2, FILE.",
)
@click.option("--context", "contexts", multiple=True, type=click.IntRange(2), metavar="N", help="Tokens (1024).")
@click.option("--windows", default=8, type=click.IntRange(1), metavar="N", help="Windows of each context (8).")
@click.option("--sinks", default=4, type=click.IntRange(0), metavar="N", help="First tokens kept exact (4).")
@click.option("--window", default=64, type=click.IntRange(0), metavar="N", help="Recent tokens kept exact (64).")
@click.option("--against", multiple=True, type=click.Choice(["quanto", "hqq"]), help="transformers' own cache.")
@click.option("--passkeys", default=0, type=click.IntRange(0), metavar="N", help="Depths to look for a passkey at.")
@click.option("--no-cost", is_flag=True, help="Measure quality only.")
@click.option("--dtype", type=click.Choice(["float32", "bfloat16", "float16"]), help="The model's; on a CPU float32.")
@click.option("--save-policy", metavar="FILE", type=_PATH, help="Write the policy, for --policy and --kv to read.")
@_shared
def kv_eval(
    model: Path,
    text: Path,
    policies: tuple[str, ...],
    contexts: tuple[int, ...],
    sinks: int,
    window: int,
    as_json: bool,
    quiet: bool,
    threads: int,
    **options: Any,
) -> None:
    """Measure what KV cache policies cost and save: perplexity, KL, bytes, peak, time, passkeys.

    Example: squeeze kv-eval my-model --text book.txt --policy kivi:4 --policy rotated:3
    """
    from squeeze.recipes.kv_eval import KVEvalOptions, rows

    if not policies and not options["kv_budget"] and not options["against"]:
        raise SqueezeError("name a policy to measure, such as --policy kivi:4")
    use(threads)
    if not as_json:
        click.echo(_ROW.format(*_HEAD))
    with bar(None, model.name, quiet, "pass") as tick:
        for row in rows(
            model, text, policies, contexts or (1024,), KVEvalOptions(sinks=sinks, window=window, **options), tick
        ):
            click.echo(json.dumps(row.as_json()) if as_json else _ROW.format(*row.cells()))


@click.command()
@click.argument("model", metavar="MODEL", type=_PATH)
@click.argument("prompt", metavar="PROMPT")
@click.option("-n", "--tokens", default=100, type=click.IntRange(1), metavar="N", help="Tokens to generate (100).")
@click.option(
    "--draft", metavar="MODEL", type=_PATH, help="A smaller model that suggests tokens; the text stays the same."
)
@click.option("--kv", metavar="BITS|POLICY", help="Code the KV cache: 4, a policy such as rotated:3, or its file.")
@click.option("--temperature", default=0.0, type=click.FloatRange(0), metavar="X", help="0 takes the likeliest.")
@click.option("--seed", default=0, metavar="N", help="Of sampling.")
@_shared
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
    from squeeze.checkpoint.pretrained import load_tokenizer
    from squeeze.integrations.load_model import load_model
    from squeeze.recipes import generate as generating
    from squeeze.recipes.kv_eval import cache_for, memory_line

    use(threads)
    network = load_model(model, device=device)
    tokenizer = load_tokenizer(model)
    if draft is not None and (kv or kv_budget):
        raise SqueezeError("a draft needs transformers' own cache: use either --draft or --kv")
    cache = None if draft else cache_for(network, tokenizer, kv, kv_budget, calibrate)
    helper = load_model(draft, device=device) if draft else None

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
