"""Quantised models."""

from pathlib import Path

from bench.entries.small import ADAPTED, WORK, beside_base, small
from bench.entry import Entry, option
from bench.tables import Column, Listing, pair, percent

QUANTIZE = Entry(
    measures="what quantising costs: perplexity, KL and bytes of each recipe, beside rounding on the same grid",
    minutes=300,
    key=("name", "samples", "windows"),
    needs=("a corpus", "the bundled model"),
    rivals=("llmcompressor",),
    options=(
        *small(128),
        ADAPTED,
        option("--rival", type=Path, metavar="PYTHON", help="of an environment with llmcompressor"),
    ),
    tables={
        "quantize": Listing(
            (
                Column("row", "name"),
                Column("sequences", "samples"),
                Column("bits a weight", "bits", ".3f"),
                Column("gap", "gap", ".3f"),
                Column("of rounding's gap", percent("of base", 0)),
            ),
            prepare=beside_base,
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
                Column("matrix", "shape"),
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
        WORK,
        ADAPTED,
        option("--types", default="q4_0,q4_k,q3_k,q2_k", help="with commas between them; auto:SIZE chooses"),
        option("--bound", type=float, help="of a token's weight in our calibration (4 for q3_k, else none)"),
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
                Column("llama.cpp without", "plain", ".4f"),
                Column("gap, relative to imatrix's", percent("of imatrix", 0)),
                Column("better in 90 % of draws", lambda row: {True: "yes", False: "no"}.get(row.get("sure"))),
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
        WORK,
        ADAPTED,
        option(
            "--schemes",
            default="w8a8,fp8_dynamic,fp8,nvfp4,nvfp4a16,mxfp4,mxfp4a16,w4a8",
            help="with commas between them (all but fp8_block)",
        ),
        option(
            "--ways",
            default="rounded,gptq,rtn",
            help="beside ours: plain (not smoothed), rounded, refined (three rounds), rotated, full (rotations at run "
            "time, too), and llm-compressor's gptq, rtn and smoothed (SmoothQuant before its GPTQ)",
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
                Column("sequences, windows", pair("samples", "windows", "")),
                Column("GPTQ", "gap", ".4f"),
                Column("RTN", "rounded", ".4f"),
                Column("GPTQ, not smoothed", "plain", ".4f"),
                Column("GPTQ, three rounds", "refined", ".4f"),
                Column("GPTQ, R1 and R2", "rotated", ".4f"),
                Column("GPTQ, R1 to R4", "full", ".4f"),
                Column("llm-compressor, GPTQ", "gptq", ".4f"),
                Column("llm-compressor, RTN", "rtn", ".4f"),
                Column("llm-compressor, SmoothQuant and GPTQ", "smoothed", ".4f"),
                Column("gap, relative to llm-compressor's best", percent("of best", 0)),
                Column("better in 90 % of draws", lambda row: {True: "yes", False: "no"}.get(row.get("sure"))),
            )
        )
    },
)

MEMORY = Entry(
    measures="peak memory of quantising or pruning a checkpoint of random weights, beside twice its largest block",
    minutes=60,
    key=("blocks", "samples", "target bits", "method"),
    options=(
        WORK,
        option("--blocks", type=int, default=44, help="two thousand million weights have 44"),
        option("--samples", type=int, default=24),
        option("--threads", type=int, default=1),
        option("--correction", type=float, default=0.5),
        option("--target-bits", type=float, help="of matrices, on the average, chosen for each"),
        option(
            "--method",
            default="gptq",
            choices=("gptq", "rtn", "magnitude"),
            help="rtn and magnitude: without calibration (gptq)",
        ),
    ),
    tables={
        "quantize-memory": Listing(
            (
                Column("blocks", "blocks"),
                Column("peak above twice the largest block, MiB", lambda row: f"{row['above'] / 2**20:,.0f}"),
            ),
            where=lambda row: row["method"] == "gptq",
        ),
        "blocks-memory": Listing(
            (
                Column("method", "method"),
                Column("blocks", "blocks"),
                Column("weights, millions", lambda row: row["weights"] / 1e6, ",.0f"),
                Column("in float32, MiB", lambda row: 4 * row["weights"] / 2**20, ",.0f"),
                Column("held, MiB", lambda row: row["held"] / 2**20, ",.0f"),
                Column("with pages of files, MiB", lambda row: row["peak"] / 2**20, ",.0f"),
                Column("seconds", "seconds"),
            ),
            where=lambda row: row["method"] not in ("gptq", "budget"),
            order=lambda row: (row["method"], row["blocks"]),
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

_WHOLE_TASKS = "nothing,plan,modegpt,slicegpt,heal,recover,recover-32"

WHOLE_MEMORY = Entry(
    measures="peak memory of plans, pairs, slices, healing and recovery of random weights, beside all in float32",
    minutes=15,
    key=("task", "place", "blocks"),
    options=(
        WORK,
        option("--blocks", type=int, default=24, help="of eleven million weights (24)"),
        option("--tasks", default=_WHOLE_TASKS, help=f"with commas between them ({_WHOLE_TASKS})"),
        option("--places", default="by block,in memory", help="where training takes place (by block,in memory)"),
        option("--threads", type=int, default=1),
    ),
    tables={
        "whole-memory": Listing(
            (
                Column("what", "task"),
                Column("how", "place"),
                Column("weights, millions", lambda row: row["weights"] / 1e6, ",.0f"),
                Column("held, MiB", lambda row: row["held"] / 2**20, ",.0f"),
                Column("beside all in float32", lambda row: row["held"] / (4 * row["weights"]), ".2f"),
                Column("with pages of files, MiB", lambda row: row["peak"] / 2**20, ",.0f"),
                Column("seconds", "seconds"),
            ),
        )
    },
)

EXPERTS = Entry(
    measures="what quantising a mixture of experts costs, on a small one that is trained here",
    minutes=30,
    key=("name", "steps", "samples", "windows"),
    needs=("a corpus",),
    options=(
        WORK,
        option("--steps", type=int, default=2000, help="of training (2000)"),
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
        WORK,
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

ENTRIES = {
    "quantize": QUANTIZE,
    "trellis": TRELLIS,
    "quantize-memory": MEMORY,
    "whole-memory": WHOLE_MEMORY,
    "experts": EXPERTS,
    "experts-memory": EXPERTS_MEMORY,
    "gguf": GGUF,
    "schemes": SCHEMES,
}
