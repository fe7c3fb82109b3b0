"""Pruned models."""

import re
from collections.abc import Sequence

from bench.entries.small import beside_base, small
from bench.entry import Entry, Row, option
from bench.tables import Column, Listing, percent

_PLAIN = re.compile(r"(magnitude|wanda|sparsegpt)[^:%]*")


def _beside_textbook(rows: Sequence[Row]) -> list[Row]:
    """The same of 2:4 in bf16, beside SparseGPT as published."""
    named = [{"base": "sparsegpt-textbook" if _PLAIN.fullmatch(row["name"]) else None, **row} for row in rows]
    return beside_base(named)


PRUNE = Entry(
    measures="what pruning costs: gap, KL and packed bytes of each way, beside textbook forms and GPTQ",
    minutes=300,
    key=("name", "samples", "windows"),
    needs=("a corpus", "the bundled model"),
    options=(*small(), option("--recovery-samples", type=int, default=400, help="sequences to retrain on (400)")),
    tables={
        "prune": Listing(
            (
                Column("row", "name"),
                Column("packed, MB", lambda row: row["bytes"] / 1e6, ".1f"),
                Column("bits a weight, stored", "bits", ".3f"),
                Column("zeros", percent("sparsity", 0)),
                Column("gap", "gap", ".3f"),
                Column("of textbook SparseGPT's", percent("of base", 0)),
            ),
            order=lambda row: -row["bytes"],
            prepare=_beside_textbook,
        )
    },
)

LAYER = Entry(
    measures="methods of pruning on three matrices of one block: bits, and the error of their outputs",
    minutes=3,
    key=("name", "layer"),
    needs=("a corpus", "the bundled model"),
    options=(*small(), option("--layer", type=int, default=8, help="number of the block (8)")),
    tables={
        "prune-layer": Listing(
            (
                Column("way", "name"),
                Column("bits a weight", "bits", ".3f"),
                *(Column(leaf, leaf, ".4f") for leaf in ("self_attn.q_proj", "mlp.up_proj", "mlp.down_proj")),
            )
        )
    },
)

ENTRIES = {
    "prune": PRUNE,
    "prune-layer": LAYER,
}
