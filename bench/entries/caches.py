"""KV caches."""

from pathlib import Path

from bench.entry import Entry, option
from bench.tables import Column, Listing, significant


def _policies(way: str = "one pass", **fields: object) -> Listing:
    """Rows of `kv` that were measured in one way with these settings."""
    wanted = {"way": way, "text": "wiki.eval.raw", "window": 64, **fields}
    columns = (
        Column("policy", "policy"),
        Column("bits", significant("bits", 4)),
        Column("above full precision", significant("percent", 4, " %")),
        Column("KL, nats a token", significant("kl", 4)),
    )
    return Listing(
        columns,
        where=lambda row: wanted.items() <= row.items() and row["bits"] is not None,
        order=lambda row: (-row["bits"], row["kl"]),
    )


KV = Entry(
    measures="every KV cache policy: perplexity, KL, bits, bytes, peak and time",
    minutes=80,
    key=("policy", "way", "context", "text", "windows", "window"),
    needs=("a corpus",),
    rivals=("optimum-quanto", "transformers"),
    options=(
        option("model", type=Path, help="a folder; `squeeze import smollm2 FOLDER` writes one"),
        option("--text", type=Path, help="else text/wiki.eval.raw of the corpus"),
        option("--calibrate", type=Path, help="else text/wiki.calibration.raw of the corpus"),
        option("--context", type=int, nargs="+", default=[1024], help="tokens (1024)"),
        option("--windows", type=int, default=8, help="so many contexts (8)"),
        option("--window", type=int, default=64, help="latest tokens in full precision (64)"),
        option("--policy", nargs="+", help="else all"),
        option("--against", nargs="*", default=[], help="other caches: quanto"),
        option("--passkeys", type=int, default=0, help="to hide in the context and ask for"),
        option("--threads", type=int, default=1),
    ),
    tables={
        "kv": _policies(context=1024, windows=8),
        "kv-window": _policies(context=1024, windows=1),
        "kv-evicted": _policies("continued", context=1024, windows=1),
        "kv-evicted-more": _policies("continued", context=1024, windows=4),
        "kv-enwik8": _policies(context=1024, windows=1, text="enwik8.1m"),
        "kv-long": _policies(context=4096, windows=1, window=128),
        "kv-heads": _policies(context=384, windows=1),
        "kv-quanto": _policies("stepped", context=1024, windows=2),
        "kv-passkeys": Listing(
            (Column("policy", "policy"), Column("passkeys found", "passkeys")), where=lambda row: "passkeys" in row
        ),
    },
)

STEP = Entry(
    measures="a step of decoding on the CPU with each KV cache policy, beside full precision's, taken in turn",
    minutes=10,
    key=("policy", "context", "dtype", "window", "threads"),
    needs=("a corpus",),
    rivals=("transformers",),
    options=(
        option("model", type=Path, help="a folder; `squeeze import smollm2 FOLDER` writes one"),
        option("--text", type=Path, help="else text/wiki.eval.raw of the corpus"),
        option("--calibrate", type=Path, help="else text/wiki.calibration.raw of the corpus"),
        option("--context", type=int, nargs="+", default=[4096], help="tokens (4096)"),
        option("--window", type=int, default=64, help="latest tokens in full precision (64)"),
        option("--policy", nargs="+", help="else transform, rotated and kivi of 2 to 4 bits"),
        option("--steps", type=int, default=24, help="to take the median of (24)"),
        option("--dtype", default="float32", help="of the model (float32)"),
        option("--threads", type=int, default=1),
    ),
    tables={
        "kv-step": Listing(
            (
                Column("policy", "policy"),
                Column("bytes of the cache", "bytes", ","),
                Column("milliseconds a step", lambda row: 1e3 * row["seconds"], ".0f"),
                Column("of full precision's", "times", ".2f"),
            ),
            where=lambda row: row["context"] == 4096,
        )
    },
)

ENTRIES = {"kv": KV, "kv-step": STEP}
