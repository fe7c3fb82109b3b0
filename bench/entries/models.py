"""Smaller models: quantised, pruned and factorised."""

import re
from collections.abc import Sequence
from pathlib import Path

from bench.entry import Entry, Option, Row, option
from bench.tables import Column, Listing, Pivot, percent

_PLAIN = re.compile(r"(magnitude|wanda|sparsegpt)[^:%]*")
_WORK = option("work", type=Path, help="a folder for the model, what is made of it, and a log of rows")


def _small(samples: int = 24) -> tuple[Option, ...]:
    """Options of benchmarks that calibrate on one text and measure on another."""
    return (
        _WORK,
        option("--rows", help="names with commas between them (all)"),
        option("--samples", type=int, default=samples, help=f"of 512 tokens of the calibration ({samples})"),
        option("--windows", type=int, help="of 1,024 tokens to measure on (all)"),
        option("--threads", type=int, default=1),
        option("--kl", action="store_true", help="measure the KL divergence, too, which takes the original"),
    )


def _beside_base(rows: Sequence[Row]) -> list[Row]:
    """Rows with `of base`: their gap as a share of that of rounding on the same grid."""
    gaps = {row["name"]: row["gap"] for row in rows}
    return [{**row, "of base": _share(row, gaps)} for row in rows]


def _share(row: Row, gaps: dict[str, float]) -> float | None:
    return None if row["name"] == row["base"] or row["base"] not in gaps else row["gap"] / gaps[row["base"]]


def _beside_textbook(rows: Sequence[Row]) -> list[Row]:
    """The same of 2:4 in bf16, beside SparseGPT as published."""
    named = [{"base": "sparsegpt-textbook" if _PLAIN.fullmatch(row["name"]) else None, **row} for row in rows]
    return _beside_base(named)


QUANTIZE = Entry(
    measures="what quantising costs: perplexity, KL and bytes of each recipe, beside rounding on the same grid",
    minutes=300,
    key=("name", "samples", "windows"),
    needs=("a corpus", "the bundled model"),
    rivals=("llmcompressor",),
    options=(*_small(128), option("--rival", type=Path, metavar="PYTHON", help="of an environment with llmcompressor")),
    tables={
        "quantize": Listing(
            (
                Column("row", "name"),
                Column("sequences", "samples"),
                Column("bits a weight", "bits", ".3f"),
                Column("gap", "gap", ".3f"),
                Column("of rounding's gap", percent("of base", 0)),
            ),
            prepare=_beside_base,
        )
    },
)

TRELLIS = Entry(
    measures="trellis codes: squared error on normal weights beside scalar codes and the bound, and products",
    minutes=0.5,
    key=("bits", "columns", "shape"),
    options=(
        option("--bits", default="1,1.5,2,2.25,2.5,3,4", help="of a weight (1,1.5,2,2.25,2.5,3,4)"),
        option("--columns", type=int, default=64, help="of 1,024 weights that are coded (64)"),
        option("--shape", default="1536x576", help="outputs x inputs of the products (1536x576)"),
    ),
    quick="--bits 2 --columns 2 --shape 64x64",
    tables={
        "trellis": Listing(
            (
                Column("bits", "bits"),
                Column("error", "error", ".4f"),
                Column("Lloyd and Max's points", "scalar", ".4f"),
                Column("least possible", "bound", ".4f"),
                Column("microseconds to code a weight", "microseconds", ".2f"),
                Column("product, times bfloat16's", "times", ".1f"),
            )
        )
    },
)

GGUF = Entry(
    measures="GGUF files: what each type costs by our GPTQ, beside llama.cpp's quantiser with an importance matrix",
    minutes=60,
    key=("type", "samples", "windows"),
    needs=("a corpus", "the bundled model", "llama-cpp-python"),
    rivals=("llama-cpp-python",),
    options=(
        _WORK,
        option("--types", default="q4_0,q4_k,q3_k,q2_k", help="with commas between them (q4_0,q4_k,q3_k,q2_k)"),
        option("--bound", type=float, help="of a token's weight in our calibration (none)"),
        option("--samples", type=int, default=24, help="of 512 tokens of the calibration (24)"),
        option("--windows", type=int, default=8, help="of 1,024 tokens to measure on (8)"),
        option("--plain", action="store_true", help="also llama.cpp without an importance matrix"),
        option("--threads", type=int, default=1),
    ),
    tables={
        "gguf": Listing(
            (
                Column("type", "type"),
                Column("matrices of it", percent("matrices", 0)),
                Column("bytes", "bytes", ","),
                Column("gap", "gap", ".4f"),
                Column("llama.cpp with imatrix", "imatrix", ".4f"),
                Column("ours of imatrix's", percent("of imatrix", 0)),
                Column("better in 90 % of draws", lambda row: "yes" if row["sure"] else "no"),
            )
        )
    },
)

SCHEMES = Entry(
    measures="schemes of compressed-tensors, activations rounded: what each costs by our GPTQ, beside llm-compressor",
    minutes=240,
    key=("scheme", "samples", "windows"),
    needs=("a corpus", "the bundled model", "compressed-tensors"),
    rivals=("llmcompressor",),
    options=(
        _WORK,
        option(
            "--schemes",
            default="w8a8,fp8_dynamic,fp8,nvfp4,nvfp4a16,mxfp4,mxfp4a16,w4a8",
            help="with commas between them (all but fp8_block)",
        ),
        option(
            "--ways",
            default="rounded,gptq,rtn",
            help="beside ours: rounded, rotated, full (rotations at run time, too), and llm-compressor's gptq and rtn",
        ),
        option("--samples", type=int, default=24, help="of 512 tokens of the calibration (24)"),
        option("--windows", type=int, default=8, help="of 1,024 tokens to measure on (8)"),
        option("--threads", type=int, default=1),
        option("--rival", type=Path, metavar="PYTHON", help="of an environment with llmcompressor"),
    ),
    tables={
        "schemes": Listing(
            (
                Column("scheme", "scheme"),
                Column("gap", "gap", ".4f"),
                Column("rounded", "rounded", ".4f"),
                Column("rotated", "rotated", ".4f"),
                Column("rotated, at run time too", "full", ".4f"),
                Column("llm-compressor, GPTQ", "gptq", ".4f"),
                Column("llm-compressor, rounded", "rtn", ".4f"),
                Column("ours of its better one", percent("of best", 0)),
                Column("better in 90 % of draws", lambda row: {True: "yes", False: "no"}.get(row.get("sure"))),
            )
        )
    },
)

MEMORY = Entry(
    measures="peak memory of quantising a checkpoint of random weights, beside twice its largest block",
    minutes=60,
    key=("blocks", "samples", "target bits"),
    options=(
        _WORK,
        option("--blocks", type=int, default=44, help="two thousand million weights have 44"),
        option("--samples", type=int, default=24),
        option("--threads", type=int, default=1),
        option("--correction", type=float, default=0.5),
        option("--target-bits", type=float, help="of matrices, on the average, chosen for each"),
    ),
    tables={
        "quantize-memory": Listing(
            (
                Column("blocks", "blocks"),
                Column("peak above twice the largest block, MiB", lambda row: f"{row['above'] / 2**20:,.0f}"),
            ),
            where=lambda row: row["target bits"] is None,
        ),
        "target-bits-memory": Listing(
            (
                Column("blocks", "blocks"),
                Column("weights, millions", lambda row: row["weights"] / 1e6, ",.0f"),
                Column("in float32, MiB", lambda row: 4 * row["weights"] / 2**20, ",.0f"),
                Column("peak, MiB", lambda row: row["peak"] / 2**20, ",.0f"),
                Column("seconds", "seconds"),
            ),
            where=lambda row: row["target bits"] is not None,
            order=lambda row: row["blocks"],
        ),
    },
)

EXPERTS = Entry(
    measures="what quantising a mixture of experts costs, on a small one that is trained here",
    minutes=15,
    key=("name", "steps", "samples", "windows"),
    needs=("a corpus",),
    options=(
        _WORK,
        option("--steps", type=int, default=400, help="of training (400)"),
        option("--samples", type=int, default=64, help="of 256 bytes of the calibration (64)"),
        option("--windows", type=int, default=64, help="of 256 bytes to measure on (64)"),
        option("--threads", type=int, default=1),
    ),
    tables={
        "experts": Listing(
            (
                Column("row", "name"),
                Column("experts' weights quantised", percent("experts", 0)),
                Column("bits a weight", "bits", ".3f"),
                Column("bytes", "bytes", ","),
                Column("notes", "noted"),
                Column("gap", "gap", ".4f"),
            ),
            where=lambda row: "gap" in row,
        )
    },
)

EXPERTS_MEMORY = Entry(
    measures="peak memory of quantising random experts in FP8 to 4 bits, beside twice the largest block",
    minutes=60,
    key=("blocks", "samples"),
    options=(
        _WORK,
        option("--blocks", type=int, default=20, help="two thousand million weights have 20"),
        option("--samples", type=int, default=24, help="of 128 tokens (24)"),
        option("--threads", type=int, default=1),
    ),
    tables={
        "experts-memory": Listing(
            (
                Column("blocks", "blocks"),
                Column("experts' weights quantised", percent("experts", 0)),
                Column("peak above twice the largest block, MiB", lambda row: f"{row['above'] / 2**20:,.0f}"),
            )
        )
    },
)

PRUNE = Entry(
    measures="what pruning costs: gap, KL and packed bytes of each way, beside textbook forms and GPTQ",
    minutes=300,
    key=("name", "samples", "windows"),
    needs=("a corpus", "the bundled model"),
    options=(*_small(), option("--recovery-samples", type=int, default=400, help="sequences to retrain on (400)")),
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
    options=(*_small(), option("--layer", type=int, default=8, help="number of the block (8)")),
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
    options=(*_small(), option("--heal", type=float, default=20, metavar="MINUTES", help="(20)")),
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
        _WORK,
        option("--matrices", type=int, default=120, help="whose damage is measured (120)"),
        option("--folds", type=int, default=3),
        option("--tiny", type=int, default=0, metavar="N", help="tiny models in the training set, made here"),
        option("--steps", type=int, default=300, help="of training (300)"),
        option("--write", action="store_true", help="train on all, and replace the weights that ship"),
    ),
    tables={"sensitivity": _folds(0), "sensitivity-tiny": _folds(3)},
)


DEMO = Entry(measures="the bundled model imported, quantised to 4 bits and measured, with a page", minutes=6)

ENTRIES = {
    "demo-model": DEMO,
    "quantize": QUANTIZE,
    "trellis": TRELLIS,
    "quantize-memory": MEMORY,
    "experts": EXPERTS,
    "experts-memory": EXPERTS_MEMORY,
    "gguf": GGUF,
    "schemes": SCHEMES,
    "prune": PRUNE,
    "prune-layer": LAYER,
    "factorize": FACTORIZE,
    "factor-speed": FACTOR_SPEED,
    "sensitivity": SENSITIVITY,
}
