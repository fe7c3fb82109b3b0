"""Codes in the order of tensor cores: each in its place, back as they were, and multiplied as the reference does."""

from types import SimpleNamespace

import pytest
import torch

from squeeze.checkpoint.bits import unpack
from squeeze.kernels import choices, w4a16
from squeeze.kernels.dequant import Packed, reference as expansion
from squeeze.kernels.w4a16 import order, reference
from squeeze.kernels.w4a16.order import Ordered
from tests.makers import bfloat16
from tests.makers.gpu import DEVICES, moved
from tests.makers.quantised import Grid, matrix, others, rounded

try:
    from squeeze.kernels.w4a16 import panels
except ImportError:
    panels = None
needs_triton = pytest.mark.skipif(panels is None, reason="triton is not installed")

# Output channels, inputs, group size.
SHAPES = [(64, 128, 128), (5, 96, 32), (70, 192, 64), (1, 33, 64), (130, 520, 128), (65, 384, 256), (16, 200, -1)]


def packed_for(shape, symmetric=True, dtype=torch.float16):
    outputs, inputs, size = shape
    return Packed.of(rounded(matrix(outputs, inputs), Grid(4, size, symmetric), dtype))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("piece", [1, 1 << 22])
def test_words_come_back_as_they_were(shape, piece, monkeypatch):
    monkeypatch.setattr(order, "_PIECE", piece)
    for symmetric in (True, False):
        packed = packed_for(shape, symmetric)
        ordered = Ordered.of(packed)
        assert ordered.words.shape == (-(-shape[0] // 64), -(-shape[1] // 128), 1024)
        back = ordered.stored()
        assert torch.equal(back.words, packed.words) and torch.equal(back.scales, packed.scales)
        assert symmetric or torch.equal(back.zeros, packed.zeros)
        assert (back.bits, back.group_size, back.inputs) == (4, packed.group_size, packed.inputs)


def test_a_code_lies_where_a_thread_wants_it():
    """As PTX has the first operand of mma.m16n8k16: thread t of a warp holds rows t / 4 and 8 more, and pairs of
    columns from 2 (t mod 4), and 8 more, on. The two of a pair lie 16 bits apart."""
    packed = packed_for((128, 256, 128))
    codes, words = unpack(packed.words, 4, 256), Ordered.of(packed).words
    for thread, cell, block, step in ((0, 0, 0, 0), (13, 3, 1, 1), (31, 2, 1, 0)):
        four = words[block, step].view(2, 4, 32, 4)[:, cell, thread]
        for number in range(8):  # matrices of 16 inputs
            word = int(four[number // 4, number % 4]) & 0xFFFFFFFF
            for pair, (down, right) in enumerate(((0, 0), (8, 0), (0, 8), (8, 8))):
                row = block * 64 + cell * 16 + thread // 4 + down
                column = step * 128 + number * 16 + 2 * (thread % 4) + right
                found = [word >> (4 * pair + 16 * side) & 15 for side in (0, 1)]
                assert found == codes[row, column : column + 2].tolist()


def test_what_fits():
    assert all(order.fits(packed_for(shape), torch.float16) for shape in SHAPES)
    assert not order.fits(packed_for(SHAPES[0]), torch.float32)
    three = Packed.of(rounded(matrix(16, 128), Grid(3, 128)))
    for packed in (packed_for((9, 70, 13)), packed_for((9, 64, 16)), three, Packed.of(others()["nf4"])):
        assert not order.fits(packed, torch.float16)


TILES = [
    (64, 4, 1, 1),
    (128, 8, 16, 3),
    (32, 4, 8, 2, 3, True),
    (16, 2, 4, 1, 2, True),
]


@needs_triton
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("device", DEVICES)
def test_panels_multiply_as_the_reference(dtype, symmetric, shape, device, monkeypatch):
    if device == "cpu":
        bfloat16.install(monkeypatch)
    packed = packed_for(shape, symmetric, dtype)
    ordered = moved(Ordered.of(packed), device)
    for number, tile in enumerate(TILES):
        x = torch.randn((1 + 2 * number, packed.inputs), generator=torch.Generator().manual_seed(4)).to(dtype)
        found, again = (panels.matmul(x.to(device), ordered, panels.Panels(*tile)).cpu() for _ in range(2))
        expected = reference.matmul(x, packed)
        assert found.shape == expected.shape and found.dtype == dtype and torch.equal(found, again)
        tolerance = 2e-3 if dtype == torch.float16 else 1e-2
        assert (found.float() - expected.float()).abs().max() <= tolerance * expected.float().abs().max()


@needs_triton
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("device", DEVICES)
def test_reshuffled_codes_expand_as_the_reference(symmetric, shape, device):
    packed = packed_for(shape, symmetric)
    ordered = moved(Ordered.of(packed), device)
    for dtype in (torch.float32, torch.float16):
        assert torch.equal(panels.dequantize(ordered, dtype).cpu(), expansion.dequantize(packed, dtype))
    assert torch.equal(w4a16.expanded(ordered).cpu(), expansion.dequantize(packed, torch.float32))


@needs_triton
def test_tiles_for_every_number_of_rows():
    for rows in (1, 2, 5, 16, 32, 64, 200):
        for shape in ((4096, 4096), (11008, 4096), (64, 128)):
            found = panels.panels(rows, shape, 132, True)
            assert 3 <= len(found) <= 5 and all(tile.early for tile in found.values())
            assert all(tile.split * tile.outputs * tile.rows <= 1 << 15 for tile in found.values())
            assert all(32 * tile.warps * tile.programs * tile.registers <= 1 << 16 for tile in found.values())
            assert all(tile.apart or tile.rows >= 8 for tile in found.values())
            assert min(rows, 64) <= next(iter(found.values())).rows <= 64
    assert {tile.split for tile in panels.panels(1, (64, 128), 132, False).values()} == {1}


@needs_triton
def test_no_rows_and_no_channels():
    packed = packed_for((64, 128, 128))
    ordered = Ordered.of(packed)
    assert panels.matmul(torch.zeros(0, 128, dtype=torch.float16), ordered, panels.Panels(64, 4, 8, 1)).shape == (0, 64)
    nothing = Ordered.of(packed.rows(3, 3))
    assert panels.dequantize(nothing, torch.float32).shape == (0, 128)
    assert panels.matmul(torch.zeros(1, 128, dtype=torch.float16), nothing, panels.Panels(64, 4, 8, 1)).shape == (1, 0)


@needs_triton
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_dispatch_of_reshuffled_codes(dtype):
    """Activations in single precision, and many, are multiplied by the expanded weight."""
    packed = packed_for((70, 256, 128))
    ordered = Ordered.of(packed)
    for rows in (0, 1, 5, 65):
        x = torch.randn((rows, 256), generator=torch.Generator().manual_seed(4)).to(dtype)
        way = w4a16.way_of(x, ordered)
        assert (way == "dense") == (dtype == torch.float32 or rows not in (1, 5)), way
        found, expected = w4a16.matmul(x, ordered), reference.matmul(x, packed)
        assert found.shape == expected.shape and found.dtype == dtype
        assert torch.allclose(found, expected, atol=2e-3 * float(expected.abs().max()) if rows else 0)


@needs_triton
@pytest.mark.parametrize("won", [(), (1,), (1, 64), (1, 16, 64)], ids=str)
def test_the_order_of_a_shape_is_measured_once(won, monkeypatch, tmp_path):
    """On a device that is not there, where products with so many rows are faster with reshuffled codes."""
    packed = packed_for((70, 256, 128))
    timed, made = [], []

    def seconds(call):
        timed.append(call.args)
        assert call().shape == (call.args[0], 70)
        return 1.0 if (timed[-1][1] == "reshuffled") == (timed[-1][0] in won) else 2.0

    found = choices.Choices(tmp_path / "it.json", "it", "3", seconds)
    monkeypatch.setattr(choices, "of_device", lambda device: found)
    monkeypatch.setattr(w4a16, "_choice", lambda x, weight: ("dense", None))
    monkeypatch.setattr(w4a16, "_can_measure", lambda tensor: True)
    monkeypatch.setattr(w4a16, "_reshuffled", lambda one: made.append(one) or Ordered.of(one))
    for number in (1, 2):
        weight = w4a16.arranged(packed, torch.float16)
        assert isinstance(weight, Ordered) == (len(won) >= 2)
        assert len(made) == 1 + number * (len(won) >= 2)
    assert timed == [(rows, name) for rows in (1, 16, 64) for name in ("as stored", "reshuffled")]
    kept = choices._read(tmp_path / "it.json", "it", "3")
    assert kept["w4a16 70x256, 4 bits, groups of 128, float16, 16 rows, order"] == (
        "reshuffled" if 16 in won else "as stored"
    )
    assert w4a16.arranged(packed, torch.float32) is packed


def test_nothing_is_reshuffled_where_nothing_can_be_measured(monkeypatch):
    packed, on_a_gpu = packed_for((70, 256, 128)), SimpleNamespace(device=torch.device("cuda"))
    assert w4a16.arranged(packed, torch.float16) is packed
    for compiling, capturing in ((False, False), (True, False), (False, True)):
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda value=compiling: value)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda value=capturing: value)
        assert w4a16._can_measure(on_a_gpu) == (not compiling and not capturing)
