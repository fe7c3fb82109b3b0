"""Import the bundled language model, quantise it to 4 bits, evaluate it, and write a report page.

A short text is used for calibration and evaluation, to finish in minutes; the benchmark `quantize` measures properly.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.measure import Measure, Row

TEXT = Path(__file__).parents[2] / "docs"


def run(*command: object) -> None:
    shown = " ".join(map(str, command))
    print(f"\n$ squeeze {shown}", flush=True)
    subprocess.run([sys.executable, "-m", "squeeze", *map(str, command)], check=True)


def rows(options: argparse.Namespace) -> Iterator[Row]:
    page = Path("build", "report.html")
    page.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        text = work / "text.md"
        text.write_text("\n".join(path.read_text() for path in sorted(TEXT.rglob("*.md"))))
        original, small = work / "smollm2", work / "smollm2-4bit"
        run("import", "smollm2", original)
        calibrated = ["--calibration", text, "--samples", 8, "--sequence-length", 256, "--format", "squeeze"]
        measured = ["--text", text, "--windows", 2, "--report", page]
        run("quantize", original, small, "--bits", 4, *calibrated, *measured)
        run("inspect", small)
        before, after = (sum(f.stat().st_size for f in path.glob("*.safetensors")) for path in (original, small))
        report = json.loads((small / "compression_report.json").read_text())
        print(f"\n{page} shows it: open it in a browser\n")
        yield {"bytes": before, "became": after, "bits a weight of the blocks": report["bits_per_weight"]}


MEASURE = Measure(rows, time=6)
