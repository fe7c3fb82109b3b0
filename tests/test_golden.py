"""Files coded once decode for ever, and today's code still writes the same bytes."""

from pathlib import Path

import pytest

import squeeze
from squeeze.codecs import levels
from tests.golden.samples import SAMPLES

FOLDER = Path(__file__).parent / "golden"


@pytest.mark.parametrize("level", levels.AVAILABLE)
@pytest.mark.parametrize("name", SAMPLES)
def test_golden_files_decode_and_are_still_written(name, level):
    coded = (FOLDER / f"{name}.{level}.sqz").read_bytes()  # missing: run `make golden`
    assert squeeze.decompress(coded) == SAMPLES[name]
    assert squeeze.compress(SAMPLES[name], level) == coded, "the format changed: it needs a new numerics version"


def test_every_golden_file_is_tested():
    known = {f"{name}.{level}.sqz" for name in SAMPLES for level in levels.AVAILABLE}
    assert {path.name for path in FOLDER.glob("*.sqz")} == known
