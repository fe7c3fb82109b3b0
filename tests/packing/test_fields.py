"""Quantised checkpoints packed: their integers are coded by their codes, and come back byte for byte."""

import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import squeeze
from squeeze import cli
from squeeze.checkpoint import quantized as packing
from squeeze.checkpoint.safetensors import Tensor
from squeeze.errors import DamagedError
from squeeze.packing import codings, fields
from squeeze.packing.coding import Subject
from squeeze.packing.codings import CODINGS
from squeeze.packing.record import Record
from squeeze.quant.formats import FORMATS, Grid, QuantizationSpec, read
from tests.makers.hf_models import tiny_model
from tests.makers.quantised import matrix, rounded, write


@pytest.mark.parametrize("kind", fields.KINDS)
@pytest.mark.parametrize("shape", [(3, 7), (6, 1), (1, 3), (2, 3), (9, 5), (3,), (4, 4), (0, 3), (), (7,), (2, 35)])
def test_every_layout_is_reversible(kind, shape):
    data = np.random.default_rng(1).integers(0, 256, 4 * int(np.prod(shape)), np.uint8)
    laid = fields.relaid(data, shape, kind)
    assert (laid is not None) == fields.fits(shape, kind)
    if laid is not None:
        assert laid.size == fields.size_of(data.size, kind)
        assert np.array_equal(fields.restored(laid, shape, kind), data)


def test_a_byte_holds_two_codes_of_three_bits():
    codes = torch.randint(0, 8, (5, 64), dtype=torch.uint8)
    words = packing.pack(codes, 3)
    pairs = (codes[:, ::2] + 8 * codes[:, 1::2]).flatten().numpy()
    across = fields.relaid(words.numpy().view(np.uint8).reshape(-1), tuple(words.shape), fields.THREES)
    assert np.array_equal(across, pairs)
    down = fields.relaid(words.T.contiguous().numpy().view(np.uint8).reshape(-1), (6, 5), fields.THREES_DOWN)
    assert np.array_equal(np.sort(down), np.sort(pairs))


@pytest.mark.parametrize(("width", "kind"), [(5, fields.FIVES), (6, fields.THREES), (7, fields.SEVENS)])
def test_a_byte_holds_a_code_of_more_than_four_bits(width, kind):
    codes = torch.randint(0, 1 << width, (5, 64), dtype=torch.uint8)
    words = packing.pack(codes, width)
    laid = fields.relaid(words.numpy().view(np.uint8).reshape(-1), tuple(words.shape), kind)
    assert np.array_equal(laid, codes.flatten().numpy())


@pytest.mark.parametrize("level", codings.LEVELS)
@pytest.mark.parametrize(
    ("format", "leaf", "width", "coding"),
    [
        ("compressed-tensors", "weight_packed", 3, "threes"),
        ("gptq_v2", "qweight", 3, "threes-down"),
        ("squeeze", "codes", 2, "bytes"),
        ("squeeze", "codes", 5, "fives"),
        ("squeeze", "codes", 6, "threes"),
        ("compressed-tensors", "weight_packed", 7, "sevens"),
        ("gptq", "qweight", 4, "bytes"),
    ],
)
def test_packing_codes_words_near_the_entropy_of_their_codes(format, leaf, width, coding, level):
    """Payloads are within 2 % of the entropy and the tables."""
    weight = rounded(matrix(512, 768), Grid(width, 96))
    words = FORMATS[format].tensors("m", weight, torch.bfloat16)[f"m.{leaf}"]
    data = words.numpy().view(np.uint8).reshape(-1)
    tensor = Tensor("m", "I32", tuple(words.shape), 0, data.size)
    found, payload = codings.encode_in_memory(Subject.of(tensor, data, None, 1), level)
    assert found.name == f"{coding}+{'archive' if level == 'archive' else 'rans'}"
    counts = np.bincount(weight.codes.flatten().numpy())
    share = counts[counts > 0] / counts.sum()
    entropy = -(share * np.log2(share)).sum() * weight.codes.numel() / 8
    assert payload.size < 1.02 * entropy + 1500


@pytest.mark.parametrize(
    ("format", "width"),
    [("gptq_v2", 3), ("compressed-tensors", 3), ("squeeze", 3), ("squeeze", 5), ("squeeze", 6)],
)
def test_quantised_folders_are_restored_and_load_packed(tmp_path, format, width):
    source = tiny_model(tmp_path / "model", tied=False)
    spec = QuantizationSpec(width, 32, False, ignored=("lm_head",))
    write(source, tmp_path / "quantised", format, spec)
    totals = squeeze.pack(tmp_path / "quantised", tmp_path / "packed")
    assert totals.coded < totals.raw
    squeeze.unpack(tmp_path / "packed", tmp_path / "back")
    for path in (tmp_path / "quantised").iterdir():
        assert (tmp_path / "back" / path.name).read_bytes() == path.read_bytes()
    packed, plain = read(tmp_path / "packed"), read(tmp_path / "quantised")
    assert packed.modules == plain.modules and packed.spec == plain.spec
    for module in plain.modules:
        assert torch.equal(packed.weight(module).dequantize(), plain.weight(module).dequantize())


def test_a_layout_that_does_not_fit_the_shape_is_damage():
    with pytest.raises(DamagedError, match="its coding does not fit its shape"):
        Record("I32", (4, 4), CODINGS["threes+rans"], 0).decode(np.zeros(64, np.uint8), None, 1)
    assert not CODINGS["threes+rans"].takes("BF16")


def test_inspect_shows_the_bits_of_a_weight(tmp_path):
    source = tiny_model(tmp_path / "model", tied=False)
    write(source, tmp_path / "quantised", "gptq", QuantizationSpec(4, 32, ignored=("lm_head",)))
    runner = CliRunner()
    found = json.loads(runner.invoke(cli.main, ["inspect", "--json", str(tmp_path / "quantised")]).stdout)["quantised"]
    per_weight = 4 + 16 / 32 + 4 / 32
    assert found["format"] == "gptq" and found["modules"] == 21
    assert per_weight < found["bits_per_weight"] < per_weight + 0.3  # and the group of each input
    shown = runner.invoke(cli.main, ["inspect", str(tmp_path / "quantised")]).output
    assert f"21 modules, {found['bits_per_weight']:.3f} bits per weight" in shown
    assert "quantised" not in json.loads(runner.invoke(cli.main, ["inspect", "--json", str(source)]).stdout)
