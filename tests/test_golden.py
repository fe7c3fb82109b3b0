"""Files coded once decode for ever, and today's code still writes the same bytes."""

import subprocess
import sys
from pathlib import Path

import pytest

import squeeze
from squeeze.codecs.stream import levels
from squeeze.packing import container
from tests.golden import samples
from tests.golden.checkpoint import golden_checkpoint
from tests.golden.samples import PAGE, RECORD, SAMPLES

FOLDER = Path(__file__).parent / "golden"
EARLIER = {  # numerics versions by level
    **dict.fromkeys((1, 2, 3, 4), (1,)),
    **dict.fromkeys((5, 6), (1, 2, 3)),
    **dict.fromkeys((7, 8, 9), (1, 2, 4, 6)),
}
LONG = (1, 2, 3, 4)  # levels of which small files with an index are kept, written before short streams
SLOW = (("words", 9), ("prose", 8))  # long texts, of which another of the levels 7 to 9 has each


@pytest.mark.parametrize(
    ("name", "level"),
    [
        pytest.param(name, level, marks=[pytest.mark.slow] * ((name, level) in SLOW))
        for name in SAMPLES
        for level in levels.LEVELS
    ],
)
def test_golden_files_decode_and_are_still_written(name, level):
    coded = (FOLDER / f"{name}.{level}.sqz").read_bytes()  # missing: run `make golden`
    assert squeeze.decompress(coded) == SAMPLES[name]
    assert samples.coded(SAMPLES[name], level) == coded, "the format changed: it needs a new numerics version"


@pytest.mark.parametrize(
    ("name", "level", "numerics"),
    [
        pytest.param(name, level, numerics, marks=[pytest.mark.slow] * (level > 7 or (name, level) == ("words", 7)))
        for name in SAMPLES
        for level, versions in EARLIER.items()
        for numerics in versions
    ],
)
def test_golden_files_of_earlier_numerics_versions_decode(name, level, numerics):
    assert squeeze.decompress((FOLDER / f"{name}.{level}.numerics{numerics}.sqz").read_bytes()) == SAMPLES[name]


def test_a_golden_file_with_repeats_decodes_and_is_still_written():
    coded = (FOLDER / "repeats.8.sqz").read_bytes()  # missing: run `make golden`
    assert squeeze.decompress(coded, threads=2) == samples.REPEATS
    assert samples.with_repeats() == coded, "the format changed: it needs a new numerics version"


@pytest.mark.parametrize("name", samples.BATCHES)
def test_golden_files_in_batches_decode_and_are_still_written(name):
    coded = (FOLDER / f"{name}.8.batches.sqz").read_bytes()
    assert squeeze.decompress(coded, threads=2) == SAMPLES[name]
    assert samples.in_batches(SAMPLES[name]) == coded, "the format changed: it needs a new numerics version"


def test_a_golden_file_with_repeats_of_numerics_version_6_decodes():
    assert squeeze.decompress((FOLDER / "repeats.8.numerics6.sqz").read_bytes(), threads=2) == samples.REPEATS


@pytest.mark.parametrize("numerics", [3, 5])
@pytest.mark.parametrize("name", samples.BATCHES)
def test_golden_files_in_batches_of_earlier_numerics_versions_decode(name, numerics):
    assert squeeze.decompress((FOLDER / f"{name}.8.numerics{numerics}.sqz").read_bytes(), threads=2) == SAMPLES[name]


@pytest.mark.parametrize("level", LONG)
@pytest.mark.parametrize("name", SAMPLES)
def test_golden_files_with_an_index_decode(name, level):
    assert squeeze.decompress((FOLDER / f"{name}.{level}.long.sqz").read_bytes()) == SAMPLES[name]


def test_a_golden_file_and_its_dictionary_of_numerics_version_1_decode():
    """The dictionary knows a state-space model."""
    known = squeeze.Dictionary.read(FOLDER / "dictionary.5.numerics1.sqzp")
    assert (known.level, known.numerics, known.learned.ssm.steps) == (5, 1, 285)
    coded = (FOLDER / "dictionary.5.numerics1.sqz").read_bytes()
    assert squeeze.decompress(coded, dictionary=known) == RECORD * 3
    assert _in_the_first_form(squeeze.compress(RECORD * 3, dictionary=known), known) == coded


def _in_the_first_form(record, dictionary):
    """The short stream of format version 2, which is written no more."""
    return b"\xf5SQ\x02" + bytes.fromhex(dictionary.identity)[:4] + record[4:]


def test_a_golden_dictionary_that_changes_the_network_decodes_and_is_still_written():
    file = FOLDER / "dictionary.5.network.sqzp"  # missing: run `make golden`
    record = (FOLDER / "dictionary.5.record.sqz").read_bytes()
    assert squeeze.decompress(record, dictionary=file) == PAGE % 77
    assert squeeze.compress(PAGE % 77, dictionary=file) == record, "the format changed: it needs a new version"
    assert samples.tuned_dictionary() == file.read_bytes()


def test_a_golden_dictionary_of_numerics_version_3_decodes_and_still_codes_the_same():
    file = FOLDER / "dictionary.5.numerics3.sqzp"
    record = (FOLDER / "dictionary.5.numerics3.record.sqz").read_bytes()
    assert squeeze.decompress(record, dictionary=file) == PAGE % 77
    assert squeeze.compress(PAGE % 77, dictionary=file) == record


def test_a_golden_dictionary_of_numerics_version_2_decodes_and_still_codes_the_same():
    """It changes the network that there was then."""
    file = FOLDER / "dictionary.5.numerics2.sqzp"
    coded, record = (file.with_suffix(suffix).read_bytes() for suffix in (".sqz", ".record.sqz"))
    assert squeeze.decompress(coded, dictionary=file) == PAGE % 77
    assert squeeze.decompress(record, dictionary=file) == PAGE % 77
    assert squeeze.compress(PAGE % 77, dictionary=file) == record
    assert _in_the_first_form(record, squeeze.Dictionary.read(file)) == coded


def test_files_have_nothing_to_do_with_torch():
    """So no version of it can change them."""
    code = "import sys; sys.modules['torch'] = None; import squeeze; print(squeeze.decompress(sys.stdin.buffer.read()))"
    coded = (FOLDER / "words.8.sqz").read_bytes()
    done = subprocess.run([sys.executable, "-c", code], input=coded, capture_output=True, check=True)
    assert done.stdout.decode() == f"{SAMPLES['words']!r}\n"


def test_every_golden_file_is_tested():
    known = {f"{name}.{level}.sqz" for name in SAMPLES for level in levels.LEVELS}
    known |= {f"{name}.{level}.numerics{n}.sqz" for name in SAMPLES for level in EARLIER for n in EARLIER[level]}
    known |= {f"{name}.{level}.long.sqz" for name in SAMPLES for level in LONG}
    known |= {f"{name}.8.{form}.sqz" for name in samples.BATCHES for form in ("batches", "numerics3", "numerics5")}
    known |= {"repeats.8.sqz", "repeats.8.numerics6.sqz"}
    parts = ("numerics1", "numerics2", "numerics2.record", "numerics3.record", "record")
    known |= {f"dictionary.5.{part}.sqz" for part in parts}
    assert {path.name for path in FOLDER.glob("*.sqz")} == known


@pytest.mark.parametrize("level", container.LEVELS)
def test_golden_packed_checkpoints_decode(level, tmp_path):
    """How they are written may change: an encoder is free to choose."""
    packed = FOLDER / f"checkpoint.{level}.safetensors"  # missing: run `make golden`
    squeeze.unpack(packed, tmp_path / "back.safetensors")
    assert (tmp_path / "back.safetensors").read_bytes() == golden_checkpoint()
    codings = [record.coding for record in container.read(packed).description.records]
    floats, integers = {"fast": ("fixed", "rans"), "runtime": ("rans", "rans")}.get(level, (level, level))
    assert codings == [floats] * 4 + [integers] + ["stored"] * 2


@pytest.mark.parametrize(("level", "coding"), [("runtime", "zeros+rans"), ("archive", "zeros+archive")])
def test_golden_zeros_decode(level, coding, tmp_path):
    packed = FOLDER / f"checkpoint.zeros.{level}.safetensors"  # missing: run `make golden`
    squeeze.unpack(packed, tmp_path / "back.safetensors")
    assert (tmp_path / "back.safetensors").read_bytes() == golden_checkpoint(zeros=True)
    assert [record.coding for record in container.read(packed).description.records].count(coding) >= 3


def test_a_golden_difference_decodes(tmp_path):
    packed = FOLDER / "checkpoint.ulps.safetensors"  # missing: run `make golden`
    (tmp_path / "base.safetensors").write_bytes(golden_checkpoint())
    squeeze.unpack(packed, tmp_path / "back.safetensors", base=tmp_path / "base.safetensors")
    assert (tmp_path / "back.safetensors").read_bytes() == golden_checkpoint(steps=3)
    assert [record.coding for record in container.read(packed).description.records].count(container.ULPS) >= 3


def test_every_golden_checkpoint_is_tested():
    assert {path.name for path in FOLDER.glob("*.safetensors")} == {
        f"checkpoint.{name}.safetensors" for name in (*container.LEVELS, "ulps", "zeros.runtime", "zeros.archive")
    }
