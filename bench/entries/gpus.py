"""Kernels for GPUs."""

from bench.entry import Entry, Row, option
from bench.tables import Column, Pivot


def _used(row: Row) -> str:
    spilled = f", **{row['spilled']:,} bytes spilled**" if row["spilled"] else ""
    return f"{row['registers']} registers, {row['shared'] / 1024:.0f} KiB{spilled}"


def _reach(row: Row) -> str:
    return f"{100 * row['share']:.0f} %" + (f", {row['bound']}" if row["named"] else "")


PROOF = Entry(
    measures="Triton kernels compiled for GPUs that are not there: exactness, registers, roofline; no time is measured",
    minutes=5,
    key=("launch", "on"),
    needs=("triton",),
    options=(option("--only", default="", help="kernels named like this"),),
    tables={
        "proof": Pivot(
            (Column("kernel", "launch"), Column("exact", lambda row: "proved" if row["exact"] else "")),
            "on",
            {name: name for name in ("sm_80", "sm_90", "sm_100")},
            _used,
            where=lambda row: not row.get("broken"),
        ),
        "roofline": Pivot(
            (Column("at most, of the roofline", "launch"),),
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
        ),
    },
)

ENTRIES = {"proof": PROOF}
