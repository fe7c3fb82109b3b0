"""Factorised models, and how sensitive matrices are."""

import re
from pathlib import Path

from bench.entries.small import WORK, small
from bench.entry import Entry, Row, option, time
from bench.tables import Column, Listing, Pivot

_KEEP = re.compile(r"-(0\.\d+)(?=$|-healed)")


def _family(row: Row) -> str:
    return _KEEP.sub("", row["name"])


def _keep(row: Row) -> str | None:
    found = _KEEP.search(row["name"])
    return found[1] if found else None


def _factorised(value: str, form: str) -> Pivot:
    titles = {"0.9": "keep 0.9", "0.8": "keep 0.8"}
    return Pivot(
        (Column("one ratio for all matrices", _family),),
        _keep,
        titles,
        value,
        form,
        where=lambda row: _keep(row) is not None,
    )


FACTORIZE = Entry(
    measures="what factorising costs: perplexity and KL against stored bytes, for every family, beside GPTQ",
    minutes=600,
    key=("name", "samples", "windows"),
    needs=("a corpus", "the bundled model"),
    options=(*small(), option("--heal", type=time, default=20, metavar="MINUTES", help="(20)")),
    tables={
        "factorize": _factorised("gap", ".3f"),
        "factorize-bytes": _factorised("bytes", ","),
        "factorize-gptq": Listing(
            (
                Column("with GPTQ, groups of 64", "name"),
                Column("bytes of the blocks", "bytes", ","),
                Column("tensors, packed", "packed", ","),
                Column("gap", "gap", ".3f"),
            ),
            where=lambda row: "gptq" in row["name"],
        ),
    },
)

FACTOR_SPEED = Entry(
    measures="times of factorised layers beside dense ones, or of models, taking turns",
    minutes=10,
    key=("what", "form", "dtype", "rows"),
    options=(
        option("--keep", type=float, default=0.8, help="of the values (0.8)"),
        option("--rows", type=int, default=1, help="of activations (1)"),
        option("--shapes", default="576x576,1536x576,576x1536,4096x4096,11008x4096", help="outputs x inputs"),
        option("--rounds", type=int, default=200, help="(200)"),
        option("--threads", type=int, default=1),
        option("--device", default="cpu"),
        option("--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="of factors and inputs"),
        option("--models", type=Path, nargs=2, metavar=("ORIGINAL", "FACTORISED"), help="these in place of layers"),
        option("--prompt", type=int, default=16, help="tokens (16)"),
    ),
    quick="--shapes 576x576 --rounds 20",
    tables={
        "factor-speed": Pivot(
            (Column("outputs x inputs", "what"), Column("type", "dtype"), Column("dense, us", "dense_us", ",.0f")),
            "form",
            {
                "pivoted": "pivoted",
                "sliced": "fewer rows",
                "monarch": "Monarch",
                "blast": "BLAST",
                "tensor train": "tensor train",
            },
            "ratio",
            ".2f",
            where=lambda row: "x" in row["what"],
        ),
        "factor-speed-models": Pivot(
            (Column("of the whole model", "what"), Column("type", "dtype")),
            "form",
            None,
            "ratio",
            ".2f",
            where=lambda row: "x" not in row["what"],
        ),
    },
)


def _folds(tiny: int) -> Pivot:
    return Pivot(
        (Column("rank correlation", "way"),),
        lambda row: f"fold {row['fold']}",
        None,
        "correlation",
        ".3f",
        where=lambda row: row["tiny"] == tiny,
    )


SENSITIVITY = Entry(
    measures="how well the sensitivity predictor orders matrices of blocks that it has not seen",
    minutes=90,
    key=("way", "fold", "tiny"),
    needs=("a corpus", "the bundled model"),
    options=(
        WORK,
        option("--matrices", type=int, default=120, help="whose damage is measured (120)"),
        option("--folds", type=int, default=3),
        option("--tiny", type=int, default=0, metavar="N", help="tiny models in the training set, made here"),
        option("--steps", type=int, default=300, help="of training (300)"),
        option("--write", action="store_true", help="train on all, and replace the weights that ship"),
    ),
    tables={"sensitivity": _folds(0), "sensitivity-tiny": _folds(3)},
)

ENTRIES = {
    "factorize": FACTORIZE,
    "factor-speed": FACTOR_SPEED,
    "sensitivity": SENSITIVITY,
}
