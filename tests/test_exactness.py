"""The same bytes on every processor: compiled for other instruction sets, the kernels write the golden files' bytes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CHECK = """
import sys
import squeeze
from pathlib import Path
from tests.golden.samples import STREAMS
for name in sys.argv[1:]:
    golden = Path("tests/golden", f"{name}.sqz").read_bytes()
    assert STREAMS[name].make() == golden, name
    assert squeeze.decompress(golden) == STREAMS[name].raw, name
"""
NAMES = ("words.3", "records.3", "mixed.3")
ALL = (*NAMES, "words.6", "repeats.8")  # the last by the language model
SLOW = [
    pytest.param(features, ALL, marks=pytest.mark.slow, id=features or "generic")
    for features in ("", "+avx2", "+sse4.2")
]


@pytest.mark.parametrize(("features", "names"), [pytest.param("", NAMES, id="generic, level 3"), *SLOW])
def test_other_instruction_sets_give_the_same_bytes(features, names):
    if features == "+avx2" and "avx2" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("this processor has no AVX2")
    environment = {**os.environ, "NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": features}  # numba caches by these
    command = [sys.executable, "-c", CHECK, *names]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
