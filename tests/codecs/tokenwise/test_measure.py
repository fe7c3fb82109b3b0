"""Costs of tokens: their sum is the coded block, candidates are the model's, and escapes count, too."""

import io

import numpy as np
import pytest

import squeeze
from squeeze.codecs.stream.measuring import measure
from squeeze.codecs.stream.resources import Resources
from tests.makers import tiny_models
from tests.makers.tokenwise import DATA, TEXT, calm


@pytest.mark.parametrize("threads", [1, 2])
def test_costs_are_those_of_the_coder(coded, folder, threads):
    blocks = list(measure(io.BytesIO(coded), Resources(threads, folder)))
    assert b"".join(block.data.tobytes() for block in blocks) == DATA
    assert [block.recorder.meter is None for block in blocks] == [False, True, False]
    for block in blocks[::2]:
        meter, spell = block.recorder.meter, block.recorder.spell
        total = meter.bits.sum(dtype=np.float64) / 8
        assert 0 <= block.block.payload_length - total <= 20  # lanes and content are named, and the coder ends
        assert (np.diff(meter.starts) > 0).all()
        assert (np.diff(meter.chances.astype(int), axis=1) <= 0).all()
        text = block.data.tobytes()
        ends = [*meter.starts[1:].tolist(), len(text)]
        for unit in range(0, meter.starts.size, 7):
            token = text[meter.starts[unit] : ends[unit]]
            expected = [spell(leaf) for leaf in meter.symbols[unit].tolist()]
            if token in expected:
                chance = meter.chances[unit, expected.index(token)] / 65535
                assert 2.0 ** -float(meter.model_bits[unit]) == pytest.approx(chance, abs=1e-4)


def test_an_explanation_has_tokens(coded, folder):
    explanation = squeeze.explain(coded, model=folder)
    units = explanation.units
    assert [block.codec for block in explanation.blocks] == ["tokenwise", "stored", "tokenwise"]
    assert units.starts[0] == 0
    assert np.array_equal(units.ends[:-1], units.starts[1:])
    assert units.ends[-1] == len(DATA)
    assert explanation.bits_of_bytes.sum() == pytest.approx(explanation.bits)
    assert (units.sources < len(DATA)).all()  # those in other lanes may lie ahead
    expected = explanation.as_json()["units"]["expected"]
    assert all(len(token) >= 1 for token, _ in expected[0])
    assert explanation.to_html().startswith("<!DOCTYPE html>")


def test_an_explanation_compares_another_language_model(folder, tmp_path, only_tokenwise):
    tokenizer = tiny_models.byte_level()
    other = tiny_models.write_folder(tmp_path / "calmer", tokenizer, calm(tokenizer))
    explanation = squeeze.explain(TEXT[:1_500], 8, model=folder, against_model=other, lanes=3, window=32)
    assert (explanation.label, explanation.against.label) == ("level 8 with tiny", "level 8 with calmer")
    assert [block.codec for block in explanation.against.blocks] == ["tokenwise"]
    assert explanation.against.bits_of_bytes.size == 1_500
    assert "at level 8 with calmer." in explanation.to_html()
