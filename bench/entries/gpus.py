"""Kernels for GPUs."""

from bench.entry import Entry, Row, option
from bench.tables import Column, Listing, Pivot


def _used(row: Row) -> str:
    spilled = f", **{row['spilled']:,} bytes spilled**" if row["spilled"] else ""
    return f"{row['registers']} registers, {row['shared'] / 1024:.0f} KiB{spilled}"


def _reach(row: Row) -> str:
    return f"{100 * row['share']:.0f} %" + (f", {row['bound']}" if row["named"] else "")


def _launch(row: Row) -> str:
    return str(row["launch"]).replace("turns,", "cos/sin of rotary embeddings,")


PROOF = Entry(
    measures="Triton kernels compiled for GPUs that are not there: exactness, registers, roofline; no time is measured",
    minutes=5,
    key=("launch", "on"),
    needs=("triton",),
    options=(option("--only", default="", help="kernels named like this"),),
    tables={
        "proof": Pivot(
            (Column("kernel", _launch), Column("exact", lambda row: "proved" if row["exact"] else "")),
            "on",
            {name: name for name in ("sm_80", "sm_90", "sm_100")},
            _used,
            order=lambda row: row["launch"],
            where=lambda row: not row.get("broken"),
        ),
        "roofline": Pivot(
            (Column("share of the roofline, on paper", _launch),),
            "on",
            {
                "a100": "A100",
                "h100": "H100",
                "h200": "H200",
                "l4": "L4",
                "l40s": "L40S",
                "rtx 4090": "RTX 4090",
                "rtx 5090": "RTX 5090",
            },
            _reach,
            order=lambda row: row["launch"],
        ),
    },
)

GPU = Entry(
    measures="every kernel on a GPU, beside torch and rivals in the same run; a run that was stopped goes on",
    minutes=20,
    key=("case", "way", "device"),
    keeps=lambda row: row["status"] != "no GPU",
    needs=("a GPU", "triton"),
    rivals=("vllm", "bitsandbytes", "nvidia-nvcomp-cu12", "dfloat11"),
    options=(
        option("--only", default="", help="cases named like this"),
        option("--again", action="store_true", help="measure what is measured on this device at this commit, too"),
        option("--seconds", type=float, default=600, help="that a row may take (600)"),
    ),
    tables={
        "gpu": Listing(
            (
                Column("what", "case"),
                Column("way", "way"),
                Column("GPU", "device"),
                Column("us", "us", ",.1f"),
                Column("times as fast as the first", "x", ".2f"),
            ),
            where=lambda row: row["status"] == "measured",
        )
    },
)

ENTRIES = {"proof": PROOF, "gpu": GPU}
