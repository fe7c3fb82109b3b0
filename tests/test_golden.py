"""Files that are kept decode, and today's code still writes the same bytes."""

import subprocess
import sys
from pathlib import Path

import pytest

import squeeze
from squeeze.packing import container
from squeeze.packing.codings import LEVELS
from tests.golden import samples
from tests.golden.checkpoint import golden_checkpoint
from tests.golden.samples import PAGE, SAMPLES

FOLDER = Path(__file__).parent / "golden"
# Long texts for the language model: without these there is one that it codes, and one in which most is repeated.
SLOW = ("words.7", "words.8", "words.9", "prose.8", "prose.9")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in samples.STREAMS]
)
def test_golden_files_decode_and_are_still_written(name):
    golden, coded = samples.STREAMS[name], (FOLDER / f"{name}.sqz").read_bytes()  # missing: run `make golden`
    assert squeeze.decompress(coded, threads=2) == golden.raw
    assert golden.make() == coded, "coded bytes changed: run `make golden`"


def test_a_golden_dictionary_that_changes_the_network_decodes_and_is_still_written():
    file = FOLDER / "dictionary.5.network.sqzp"  # missing: run `make golden`
    record = (FOLDER / "dictionary.5.record.sqz").read_bytes()
    assert squeeze.decompress(record, dictionary=file) == PAGE % 77
    assert squeeze.compress(PAGE % 77, dictionary=file) == record, "coded bytes changed: run `make golden`"
    assert samples.tuned_dictionary() == file.read_bytes()


def test_files_have_nothing_to_do_with_torch():
    """No version of torch can change them, since it is not imported."""
    code = "import sys; sys.modules['torch'] = None; import squeeze; print(squeeze.decompress(sys.stdin.buffer.read()))"
    coded = (FOLDER / "prose.7.sqz").read_bytes()
    done = subprocess.run([sys.executable, "-c", code], input=coded, capture_output=True, check=True)
    assert done.stdout.decode() == f"{SAMPLES['prose']!r}\n"


def test_every_golden_file_is_tested():
    known = {f"{name}.sqz" for name in samples.STREAMS} | {"dictionary.5.record.sqz"}
    assert {path.name for path in FOLDER.glob("*.sqz")} == known


@pytest.mark.parametrize("level", LEVELS)
def test_golden_packed_checkpoints_decode(level, tmp_path):
    """Only decoding is fixed: an encoder is free to choose."""
    packed = FOLDER / f"checkpoint.{level}.safetensors"  # missing: run `make golden`
    squeeze.unpack(packed, tmp_path / "back.safetensors")
    assert (tmp_path / "back.safetensors").read_bytes() == golden_checkpoint()
    codings = [record.coding.name for record in container.read(packed).description.records]
    floats, integers = {"fast": ("fixed", "rans"), "runtime": ("rans", "rans")}.get(level, (level, level))
    assert codings == [floats] * 4 + [integers] + ["stored"] * 2


@pytest.mark.parametrize(("level", "coding"), [("runtime", "zeros+rans"), ("archive", "zeros+archive")])
def test_golden_zeros_decode(level, coding, tmp_path):
    packed = FOLDER / f"checkpoint.zeros.{level}.safetensors"  # missing: run `make golden`
    squeeze.unpack(packed, tmp_path / "back.safetensors")
    assert (tmp_path / "back.safetensors").read_bytes() == golden_checkpoint(zeros=True)
    assert [record.coding.name for record in container.read(packed).description.records].count(coding) >= 3


def test_a_golden_difference_decodes(tmp_path):
    packed = FOLDER / "checkpoint.ulps.safetensors"  # missing: run `make golden`
    (tmp_path / "base.safetensors").write_bytes(golden_checkpoint())
    squeeze.unpack(packed, tmp_path / "back.safetensors", base=tmp_path / "base.safetensors")
    assert (tmp_path / "back.safetensors").read_bytes() == golden_checkpoint(steps=3)
    assert [record.coding.name for record in container.read(packed).description.records].count("ulps") >= 3


def test_every_golden_checkpoint_is_tested():
    assert {path.name for path in FOLDER.glob("*.safetensors")} == {
        f"checkpoint.{name}.safetensors" for name in (*LEVELS, "ulps", "zeros.runtime", "zeros.archive")
    }
