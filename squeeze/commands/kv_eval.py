"""`squeeze kv-eval`."""

import json
from pathlib import Path
from typing import Any

import click

from squeeze.commands import options, values
from squeeze.commands.models import use
from squeeze.commands.progress import bar
from squeeze.commands.reporting import write_page
from squeeze.commands.sections import command
from squeeze.errors import SqueezeError

_ROW = "{:<28} {:>7} {:>8} {:>10} {:>9} {:>10} {:>12} {:>12} {:>9} {:>8}"
_HEAD = ("policy", "context", "bits", "perplexity", "%", "KL", "cache bytes", "peak bytes", "ms/token", "passkeys")


@command(name="kv-eval")
@click.argument("model", metavar="MODEL", type=values.PATH)
@click.option("--text", required=True, metavar="FILE", type=values.PATH, help="Text to predict")
@click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="POLICY",
    help="Policy or its file, such as kivi:4, rotated:3,window=128 or kivi:2+snapkv:512; repeatable",
)
@click.option(
    "--context",
    "contexts",
    multiple=True,
    type=click.IntRange(2),
    metavar="N",
    help="Context length in tokens; repeatable; default: 1024",
)
@click.option(
    "--windows", default=8, type=click.IntRange(1), metavar="N", help="Windows per context length; default: 8"
)
@click.option("--sinks", default=4, type=click.IntRange(0), metavar="N", help="First tokens kept exact; default: 4")
@click.option("--window", default=64, type=click.IntRange(0), metavar="N", help="Recent tokens kept exact; default: 64")
@click.option(
    "--against",
    multiple=True,
    type=click.Choice(["quanto", "hqq"]),
    help="Quantised cache of transformers, for comparison; repeatable",
)
@click.option(
    "--passkeys",
    default=0,
    type=click.IntRange(0),
    metavar="N",
    help="Number of depths at which a passkey is searched for; default: 0",
)
@click.option("--no-cost", is_flag=True, help="Measure quality only, not memory and time")
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16", "float16"]),
    help="Type of the weights; default: the model's, float32 on a CPU",
)
@click.option(
    "--save-policy", metavar="FILE", type=values.PATH, help="File to write the policy to, for --policy and --kv"
)
@options.report
@options.caching
def kv_eval(
    model: Path,
    text: Path,
    policies: tuple[str, ...],
    contexts: tuple[int, ...],
    sinks: int,
    window: int,
    page: Path | None,
    as_json: bool,
    quiet: bool,
    threads: int,
    **params: Any,
) -> None:
    """Measure quality, memory and time of KV cache policies.

    \b
    Example: squeeze kv-eval my-model --text book.txt --policy kivi:4 --policy rotated:3

    Quality is perplexity and KL divergence from the exact cache, and the share of passkeys that are found.
    """
    from squeeze.recipes.measure.kv_eval import rows
    from squeeze.recipes.measure.kv_policies import KVEvalOptions

    if not policies and not params["kv_budget"] and not params["against"]:
        raise SqueezeError("kv-eval needs a policy, got none: give one, such as --policy kivi:4")
    use(threads, params["device"])
    if not as_json:
        click.echo(_ROW.format(*_HEAD))
    in_one_pass = sum("+" not in policy for policy in policies) + bool(params["kv_budget"])
    passes = in_one_pass * len(contexts or (1024,)) * params["windows"]  # those through caches are not counted
    with bar(model.name, passes, unit=" windows", quiet=quiet, as_json=as_json) as tick:
        options = KVEvalOptions(sinks=sinks, window=window, **params)
        found = []
        for row in rows(model, text, policies, contexts, options, tick):
            click.echo(json.dumps(row.as_json()) if as_json else _ROW.format(*row.cells()))
            found.append(row.as_json())
    write_page(page, found)
