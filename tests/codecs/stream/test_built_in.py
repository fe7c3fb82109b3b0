"""What mixers begin with, and the files of the package that say so."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import squeeze
from squeeze.codecs import shipped
from squeeze.codecs.deep import coder, presets
from squeeze.codecs.stream import built_in
from squeeze.errors import SqueezeError
from tests.makers import inputs
from tests.references import naive_dictionary

FORMAT = Path(__file__).parents[3] / "docs" / "format.md"


@pytest.mark.parametrize("name", built_in.CHECKSUMS)
def test_the_files_are_those_of_the_format(name):
    assert f"`0x{built_in.CHECKSUMS[name]:016x}`" in FORMAT.read_text()
    assert shipped.tensors(built_in.FOLDER / f"{name}{built_in.SUFFIX}", built_in.CHECKSUMS[name])


@pytest.mark.parametrize("level", [5, 6])
def test_text_is_smaller_with_them(level):
    preset = presets.preset(level, "text")
    data = np.frombuffer(inputs.python_text(6_000), np.uint8)
    plain = coder.encode(data, replace(preset, taught=""))
    known = coder.encode(data, preset, start=built_in.start(preset))
    assert len(known) < 0.985 * len(plain)
    assert np.array_equal(coder.decode(known, data.size, preset, start=built_in.start(preset)), data)


@pytest.mark.parametrize("changed", [True, False], ids=["changed", "missing"])
def test_other_files_are_not_used(changed, tmp_path):
    file, checksum = built_in.FOLDER / f"text.5{built_in.SUFFIX}", built_in.CHECKSUMS["text.5"]
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    other = tmp_path / file.name
    if changed:
        other.write_bytes(content)
    with pytest.raises(SqueezeError, match=r"the file text\.5\.safetensors of the package is missing or damaged"):
        shipped.tensors(other, checksum)


def test_a_dictionary_without_text_is_read_as_specified(tmp_path):
    samples = [inputs.words(800, seed=seed) for seed in range(12)]
    known = squeeze.train(samples, tmp_path / "words.sqzp", level=4, text_size=0).learned
    inputs_, contexts = known.weights.shape[1], 14
    maps = [contexts * 256, contexts * 512, 3 * 512, 32 * 192]
    file, logits = (tmp_path / "words.sqzp").read_bytes(), known.finals.size // 2752
    read, _ = naive_dictionary.read(file, inputs_, logits, maps)
    assert read.visits == dict(zip(known.rows.tolist(), known.visits.tolist(), strict=True))
    for row, weights in zip(known.rows.tolist(), known.weights, strict=True):
        assert np.array_equal(np.float32(0.03) + read.weights[row], weights)
    assert sorted(read.apms) == known.apm_rows.tolist()
