"""Built-in weights: the files of the package, and the names by which users choose them."""

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import squeeze
from squeeze.codecs import package_data
from squeeze.codecs.bytewise.presets import WARM_START_KINDS
from squeeze.codecs.deep import coder, presets
from squeeze.codecs.stream import dictionary, levels
from squeeze.codecs.stream.compressor import compress_stream
from squeeze.codecs.stream.index import read_index
from squeeze.codecs.stream.resources import AUTO, BUILT_IN, NONE
from squeeze.errors import DictionaryError, LevelError, SqueezeError
from tests.makers import inputs
from tests.references import naive_dictionary

FORMAT = Path(__file__).parents[3] / "docs" / "format.md"


@pytest.mark.parametrize("name", dictionary.CHECKSUMS)
def test_the_files_are_those_of_the_format(name):
    assert f"`0x{dictionary.CHECKSUMS[name]:016x}`" in FORMAT.read_text()
    assert package_data.tensors(dictionary.FOLDER / f"{name}{dictionary.SUFFIX}", dictionary.CHECKSUMS[name])


@pytest.mark.parametrize("level", [4, 5, 6])
@pytest.mark.parametrize("kind", WARM_START_KINDS)
def test_files_are_smaller_with_built_in_weights(kind, level):
    preset = presets.preset(level, kind)
    data = np.frombuffer(inputs.python_text(3_000) if kind == "text" else inputs.program(1 << 13), np.uint8)
    plain = coder.encode(data, replace(preset, warm_start=""))
    known = coder.encode(data, preset, start=dictionary.built_in_start(preset))
    assert len(known) < 0.99 * len(plain)
    assert np.array_equal(coder.decode(known, data.size, preset, start=dictionary.built_in_start(preset)), data)


@pytest.mark.parametrize("changed", [True, False], ids=["changed", "missing"])
def test_refuses_files_with_another_checksum(changed, tmp_path):
    file, checksum = dictionary.FOLDER / f"text.5{dictionary.SUFFIX}", dictionary.CHECKSUMS["text.5"]
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    other = tmp_path / file.name
    if changed:
        other.write_bytes(content)
    with pytest.raises(SqueezeError, match=r"the file text\.5\.safetensors\.xz of the package is missing or damaged"):
        package_data.tensors(other, checksum)


def test_a_dictionary_without_text_is_read_as_specified(tmp_path):
    samples = [inputs.words(400, seed=seed) for seed in range(4)]
    known = squeeze.train(samples, tmp_path / "words.sqzp", level=4, text_size=0).learned
    inputs_, contexts = known.weights.shape[1], 14
    maps = [contexts * 256, contexts * 512, 3 * 512, 32 * 192]
    file, logits = (tmp_path / "words.sqzp").read_bytes(), known.finals.size // 2752
    read, _ = naive_dictionary.read(file, inputs_, logits, maps)
    assert read.visits == dict(zip(known.rows.tolist(), known.visits.tolist(), strict=True))
    for row, weights in zip(known.rows.tolist(), known.weights, strict=True):
        assert np.array_equal(np.float32(0.03) + read.weights[row], weights)
    assert sorted(read.apms) == known.apm_rows.tolist()


def test_what_comes_with_the_package_has_a_name():
    kinds = {name.partition(".")[0] for name in dictionary.CHECKSUMS}
    assert set(BUILT_IN) - {AUTO, NONE} <= kinds == set(WARM_START_KINDS)


@pytest.mark.parametrize("level", range(1, 7))
def test_text_is_larger_without_what_is_built_in(level):
    data = inputs.python_text(3_000)
    plain, alone = (squeeze.compress(data, level, dictionary=name) for name in (AUTO, NONE))
    assert len(plain) < 0.95 * len(alone)
    assert squeeze.decompress(plain) == squeeze.decompress(alone) == data


def test_bare_models_begin_with_nothing_built_in():
    data = inputs.PROSE[:700]
    plain, alone = squeeze.compress(data, 5, dictionary=AUTO), squeeze.compress(data, 5, dictionary=NONE)
    assert plain == squeeze.compress(data, 5)
    assert read_index(io.BytesIO(alone))[0].header == {"level": 5, "numerics": 1, "bare": True}
    assert len(plain) < len(alone) < len(data)
    assert squeeze.decompress(alone) == squeeze.decompress(alone, dictionary=NONE) == data


def test_any_data_can_start_with_the_weights_of_text():
    """Name it for a short stream and for blocks, whose content is not guessed then."""
    data = b" ".join(
        word + b"\b" + word[-1:] for word in inputs.PROSE.split()
    )  # a letter struck twice: equal at a distance of 2
    sink = io.BytesIO()
    compress_stream(io.BytesIO(data), sink, level=5, dictionary="text", block_size=1_000)
    assert [block.content for block in read_index(io.BytesIO(sink.getvalue()))[0].blocks] == ["text"] * 2
    plain, named = squeeze.compress(data, 5), squeeze.compress(data, 5, dictionary="text")
    assert [read_index(io.BytesIO(one))[0].blocks[0].content for one in (plain, named)] == ["other", "text"]
    assert len(named) < len(plain)
    assert squeeze.decompress(sink.getvalue()) == squeeze.decompress(named) == data


def test_a_language_model_is_not_left_out():
    with pytest.raises(LevelError, match="the built-in dictionary text belongs to levels 1 to 6"):
        squeeze.compress(b"abc", 7, dictionary="text")
    with pytest.raises(LevelError, match="levels 7 to 9 always use what is built in: use a level from 1 to 6"):
        squeeze.compress(b"abc", 7, dictionary=NONE)
    for number in (4, 5, 6):
        assert not levels.bare(levels.level(number)).models("text").network


def test_refuses_a_name_that_does_not_exist(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wanted = "^there is no dictionary 'prose': give auto, none or text, or a file of `squeeze train`$"
    with pytest.raises(DictionaryError, match=wanted):
        squeeze.compress(b"abc", dictionary="prose")
    for missing in ("prose.sqzp", Path("folder/prose")):
        with pytest.raises(FileNotFoundError):
            squeeze.compress(b"abc", dictionary=missing)
    known = squeeze.train([inputs.words(1_100)], tmp_path / "none", level=4, learn_size=2_000)
    assert squeeze.compress(inputs.PROSE, dictionary=Path("none")) == squeeze.compress(inputs.PROSE, dictionary=known)
