"""Files coded once decode for ever, and today's code still writes the same bytes."""

import subprocess
import sys
from pathlib import Path

import pytest

import squeeze
from squeeze.codecs.stream import levels
from squeeze.packing import container
from tests.golden.checkpoint import golden_checkpoint
from tests.golden.samples import SAMPLES

FOLDER = Path(__file__).parent / "golden"


@pytest.mark.parametrize("level", levels.LEVELS)
@pytest.mark.parametrize("name", SAMPLES)
def test_golden_files_decode_and_are_still_written(name, level):
    coded = (FOLDER / f"{name}.{level}.sqz").read_bytes()  # missing: run `make golden`
    assert squeeze.decompress(coded) == SAMPLES[name]
    assert squeeze.compress(SAMPLES[name], level, verify=False) == coded, (
        "the format changed: it needs a new numerics version"
    )


@pytest.mark.parametrize("level", [n for n, row in levels.LEVELS.items() if row.needs_language_model])
def test_files_have_nothing_to_do_with_torch(level):
    """So no version of it can change them."""
    code = "import sys; sys.modules['torch'] = None; import squeeze; print(squeeze.decompress(sys.stdin.buffer.read()))"
    coded = (FOLDER / f"words.{level}.sqz").read_bytes()
    done = subprocess.run([sys.executable, "-c", code], input=coded, capture_output=True, check=True)
    assert done.stdout.decode() == f"{SAMPLES['words']!r}\n"


def test_every_golden_file_is_tested():
    known = {f"{name}.{level}.sqz" for name in SAMPLES for level in levels.LEVELS}
    assert {path.name for path in FOLDER.glob("*.sqz")} == known


@pytest.mark.parametrize("level", container.LEVELS)
def test_golden_packed_checkpoints_decode(level, tmp_path):
    """How they are written may change: an encoder is free to choose."""
    packed = FOLDER / f"checkpoint.{level}.safetensors"  # missing: run `make golden`
    squeeze.unpack(packed, tmp_path / "back.safetensors")
    assert (tmp_path / "back.safetensors").read_bytes() == golden_checkpoint()
    codings = [record.coding for record in container.read(packed).description.records]
    assert codings == [{"runtime": "rans"}.get(level, level)] * 5 + ["stored"] * 2


def test_every_golden_checkpoint_is_tested():
    assert {path.name for path in FOLDER.glob("*.safetensors")} == {
        f"checkpoint.{level}.safetensors" for level in container.LEVELS
    }
