"""Write the same .sqz with every number of threads, prefill size and instruction set, and decode each file by another
run.

Every run is a process of its own. NUMBA_CPU_NAME and NUMBA_CPU_FEATURES select the target of the kernels,
ONEDNN_MAX_CPU_ISA the instructions of torch. numba caches kernels per target. So only the first run compiles them, for
about a minute each.
"""

import argparse
import json
import os
import pydoc_data.topics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.measure import Measure, Row, option
from bench.records import machine
from bench.tables import Column, Listing

SIZE = 20_000
GENERIC = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
AVX2_ONLY = {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx2"}
AVX_VNNI = {"NUMBA_CPU_NAME": "alderlake", "NUMBA_CPU_FEATURES": "+avxvnni"}
# Name -> (environment, threads, tokens in one prefill; None for as many as prefill.py says)
WAYS: dict[str, tuple[dict[str, str], int, int | None]] = {
    "this processor": ({}, 2, None),
    "1 thread": ({}, 1, None),
    "3 threads": ({}, 3, None),
    "prefill of 32": ({}, 2, 32),
    "prefill of 64": ({}, 2, 64),
    "prefill of 512": ({}, 2, 512),
    **{f"oneDNN {isa}": ({"ONEDNN_MAX_CPU_ISA": isa}, 2, None) for isa in ("SSE41", "AVX2", "AVX512_CORE")},
    "SSE2 (generic x86-64)": (GENERIC, 2, None),
    "AVX2 (haswell)": (AVX2_ONLY, 2, None),
    "AVX-VNNI (alderlake)": (AVX_VNNI, 2, None),
    "AVX2, 1 thread, prefill of 32": (AVX2_ONLY, 1, 32),
}
NEEDED = {"avx2": AVX2_ONLY, "avx_vnni": AVX_VNNI}  # of a processor, by what Linux calls it
WORK = """
import hashlib, json, sys, time
from pathlib import Path
import squeeze
from squeeze.codecs.stream.index import read_index
from squeeze.codecs.tokenwise import prefill
job = json.loads(sys.argv[1])
prefill.ROWS = job["rows"] or prefill.ROWS
source, target, other = (Path(job[name]) for name in ("source", "target", "other"))
model = Path(job["model"]) if job["model"] else None
data, options = source.read_bytes(), {"threads": job["threads"], "model": model}
begin = time.perf_counter()
target.write_bytes(squeeze.compress(data, 8, lanes=job["lanes"], verify=False, **options))
middle = time.perf_counter()
decodes = squeeze.decompress(other.read_bytes(), **options) == data
end = time.perf_counter()
with target.open("rb") as file:
    codecs = sorted({block.codec for stream in read_index(file) for block in stream.blocks})
coded = target.read_bytes()
print(json.dumps({"sha256": hashlib.sha256(coded).hexdigest(), "coded_size": len(coded), "codecs": codecs,
    "decodes": decodes, "compress_seconds": round(middle - begin, 2), "decompress_seconds": round(end - middle, 2)}))
"""


def run(name: str, job: dict[str, object], environment: dict[str, str]) -> Row:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("NUMBA_CPU", "ONEDNN_MAX"))}
    command = [sys.executable, "-c", WORK, json.dumps(job)]
    done = subprocess.run(command, env={**kept, **environment}, capture_output=True, text=True, check=False)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"it ended with exit code {done.returncode}"]
        return {"way": name, "error": last[0]}
    return {"way": name, "decoded": Path(str(job["other"])).stem, **json.loads(done.stdout)}


def runs_of_this_processor() -> list[str]:
    """Return the names of the runs whose instruction sets this processor has."""
    known = machine()["flags"]
    lacking = [environment for flag, environment in NEEDED.items() if flag not in known]
    return [name for name, (environment, _, _) in WAYS.items() if environment not in lacking]


def measure(source: Path, lanes: int, model: str | None, folder: Path) -> list[Row]:
    """Return one row per run. Each run decodes the file of the run before it, and the first one that of the last.

    Args:
        source: text to compress
        lanes: lanes of the language model
        model: a .gguf file, None for the bundled model
        folder: folder for the compressed files
    """
    results: list[Row] = []
    names = runs_of_this_processor()
    for name in (name for name in WAYS if name not in names):
        print(f"{name}: left out, this processor does not have it", file=sys.stderr)
    files = {name: folder / f"{name}.sqz" for name in names}
    for name, before in [(names[0], names[0]), *zip(names[1:], names, strict=False), (names[0], names[-1])]:
        environment, threads, rows = WAYS[name]
        job = {"source": str(source), "target": str(files[name]), "other": str(files[before])}
        result = run(name, {**job, "threads": threads, "rows": rows, "lanes": lanes, "model": model}, environment)
        print(f"{name}: {result.get('error', 'done')}", file=sys.stderr)
        results.append(result)
    return results[1:]


def rows(options: argparse.Namespace) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "text")
        text = options.file.read_bytes() if options.file else Path(pydoc_data.topics.__file__).read_bytes()[:SIZE]
        source.write_bytes(text)
        results = measure(source, options.lanes, options.model, Path(folder))
    yield from results
    if failed := [row["way"] for row in results if "error" in row]:
        sys.exit(f"Error: {failed[0]} DID NOT END WELL.")
    if len({row["sha256"] for row in results}) != 1:
        sys.exit("Error: THE FILES DIFFER.")
    if not all(row.get("decodes") and "tokenwise" in row.get("codecs", ()) for row in results):
        sys.exit("Error: NOT ALL WERE DECODED.")
    print("All files are the same, and all were decoded.", file=sys.stderr)


MEASURE = Measure(
    rows,
    key=("way",),
    time=20,
    options=(
        option("file", nargs="?", type=Path, help="text to compress, default: 20,000 bytes of Python's documentation"),
        option("--lanes", type=int, default=8, help="lanes of the language model, default: 8"),
        option("--model", help=".gguf file, default: the bundled model"),
    ),
    tables={
        "exactness": Listing(
            (
                Column("run", "way"),
                Column("SHA-256 of the .sqz", lambda row: row["sha256"][:16]),
                Column("bytes", "coded_size", ","),
                Column("decoded the file of", "decoded"),
            )
        )
    },
)
