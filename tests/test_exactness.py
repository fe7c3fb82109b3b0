"""The same bytes on every processor: compiled for other instruction sets, the kernels write the golden files' bytes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CHECK = """
import squeeze
from pathlib import Path
from tests.golden.samples import SAMPLES, coded
for name in ("words", "records", "mixed"):
    golden = Path("tests/golden", f"{name}.3.sqz").read_bytes()
    assert coded(SAMPLES[name], 3) == golden, name
    assert squeeze.decompress(golden) == SAMPLES[name], name
"""


@pytest.mark.parametrize("features", ["", "+avx2", pytest.param("+sse4.2", marks=pytest.mark.slow)])
def test_other_instruction_sets_give_the_same_bytes(features):
    if features == "+avx2" and "avx2" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("this processor has no AVX2")
    environment = {**os.environ, "NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": features}  # numba caches by these
    command = [sys.executable, "-c", CHECK]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
