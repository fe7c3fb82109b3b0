"""Mutated files decode to the exact data or raise a named error, and soon; decoding touches nothing but its files."""

import io

import numpy as np
import pytest

import squeeze
from squeeze.codecs.stream.compressor import compress_stream
from squeeze.codecs.stream.container import check16, read_header
from squeeze.codecs.stream.decompressor import decompress_stream
from squeeze.errors import DictionaryError
from tests.makers import inputs
from tests.makers.audit import news
from tests.makers.mutations import mutate

DATA = inputs.words(700) + inputs.random_bytes(500) + inputs.words(300, seed=8) + inputs.records(20)


@pytest.fixture(scope="module")
def coded():
    sink = io.BytesIO()
    compress_stream(io.BytesIO(DATA), sink, level=1, block_size=700)
    return sink.getvalue()


def outcome(data: bytes) -> bytes | None:
    try:
        return squeeze.decompress(data)
    except (squeeze.FormatError, DictionaryError):  # a flipped bit can make a record of a stream
        return None


@pytest.mark.parametrize("count", [600, pytest.param(2_400, marks=pytest.mark.slow)])
def test_mutated_files_never_give_wrong_data(coded, count):
    generator = np.random.default_rng(2026)
    for _ in range(count):
        restored = outcome(mutate(coded, generator))
        assert restored in (None, DATA)


def test_mutations_that_forge_the_header_check_give_no_wrong_data_either(coded):
    """Damage a header and make its check right: the checksums of blocks still find it."""
    header, size, *_ = read_header(io.BytesIO(coded))
    for level in (2, 3):
        body = coded[: size - 2].replace(b'"level":%d' % header["level"], b'"level":%d' % level)
        assert outcome(body + check16(body) + coded[size:]) is None


def test_salvaging_mutated_files_always_ends(coded):
    generator = np.random.default_rng(7)
    for _ in range(300):
        data, sink = mutate(coded, generator), io.BytesIO()
        try:
            totals = decompress_stream(io.BytesIO(data), sink, salvage=True)
        except squeeze.FormatError:
            continue
        assert sink.tell() == totals.raw
        assert totals.damage or sink.getvalue() == DATA


def test_refuses_random_bytes():
    for seed in range(200):
        assert outcome(inputs.random_bytes(50, seed)) is None
        assert outcome(b"\xf5\xac\x01" + inputs.random_bytes(50, seed)) is None


FOREIGN = ["torch", "transformers", "safetensors", "tokenizers", "requests", "urllib3", "huggingface_hub"]
_CODE = """
import io, squeeze
with open({source!r}, "rb") as source, open({target!r}, "wb") as target:
    squeeze.decompress_stream(source, target)
with open({source!r}, "rb") as source, squeeze.open(source) as file:
    file.read()
"""


@pytest.mark.parametrize("level", [1, 3, pytest.param(5, marks=pytest.mark.slow)])
def test_decoding_reads_the_input_and_writes_the_output_and_nothing_else(tmp_path, level):
    data, paths = inputs.words(1_000), {"source": str(tmp_path / "a.sqz"), "target": str(tmp_path / "a")}
    (tmp_path / "a.sqz").write_bytes(squeeze.compress(data, level))
    assert news(_CODE.format(**paths), [tmp_path], FOREIGN) == []
    assert (tmp_path / "a").read_bytes() == data


@pytest.mark.slow
def test_decoding_by_the_language_model_reads_the_model_besides(tmp_path):
    from squeeze.lm import loading, models

    bundled = models.bundled_path()
    if bundled is None:
        pytest.skip("the bundled model is not installed")
    paths = {"source": str(tmp_path / "a.sqz"), "target": str(tmp_path / "a")}
    with (tmp_path / "b").open("wb") as raw:
        raw.write(inputs.words(300))
    with (tmp_path / "b").open("rb") as source, (tmp_path / "a.sqz").open("wb") as sink:
        compress_stream(source, sink, level=8)
    refused = [name for name in FOREIGN if name not in ("safetensors", "tokenizers")]
    assert news(_CODE.format(**paths), [tmp_path, loading.cache_folder(), bundled], refused) == []
    assert (tmp_path / "a").read_bytes() == inputs.words(300)
