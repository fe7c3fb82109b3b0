"""Kernels on packed weights: Triton's and the CPU's equal the references, on odd shapes too."""

import pytest
import torch

from squeeze.checkpoint.quantized import QuantizedTensor
from squeeze.kernels import choices, dequant, w4a16
from squeeze.kernels.dequant import Packed, reference_dequantize
from squeeze.kernels.w4a16 import cpu, reference_matmul
from squeeze.quant.formats.spec import BITS
from squeeze.quant.linear import QuantLinear
from tests.makers.cases import every
from tests.makers.gpu import DEVICES, moved
from tests.makers.quantised import Grid, matrix, others, rounded

try:
    from squeeze.kernels.dequant import kernel as expansion_kernel
    from squeeze.kernels.w4a16 import blocks, kernel, slices
except ImportError:
    blocks = kernel = slices = expansion_kernel = None
needs_triton = pytest.mark.skipif(kernel is None, reason="triton is not installed")

# Output channels, inputs, group size.
SHAPES = [(16, 64, 32), (5, 96, -1), (9, 70, 13), (1, 33, 64), (17, 128, 64)]
INTEGERS = [Grid(bits, 32, symmetric) for bits in BITS for symmetric in (True, False)]
MULTIPLIED = [bits for bits in BITS if bits in (2, 3, 4, 8)]


def pairs(shapes, widths):
    """Return cases with every width at every shape. Every other case has zero points, so both have every shape."""
    return [
        pytest.param(Grid(bits, 32, (i + j) % 2 == 0), shape, id=f"{shape}-{bits} bits")
        for i, shape in enumerate(shapes)
        for j, bits in enumerate(widths)
    ]


def packed_for(grid, outputs, inputs, group_size, dtype=torch.float16):
    return Packed.of(
        rounded(matrix(outputs, inputs), Grid(grid.bits, group_size, grid.symmetric, grid.codebook), dtype)
    )


def close(found, expected, tolerance):
    """Within a share of the largest value."""
    assert found.shape == expected.shape and found.dtype == expected.dtype
    assert (found.float() - expected.float()).abs().max() <= tolerance * expected.float().abs().max()


@pytest.mark.parametrize("grid", INTEGERS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_reference_expands_to_the_weight(grid, shape):
    outputs, inputs, size = shape
    weight = rounded(matrix(outputs, inputs), Grid(grid.bits, size, grid.symmetric))
    assert torch.equal(reference_dequantize(Packed.of(weight), torch.bfloat16), weight.dequantize(torch.bfloat16))


@pytest.mark.parametrize("name", others())
def test_the_reference_expands_codebooks(name):
    weight = others()[name]
    assert torch.equal(reference_dequantize(Packed.of(weight), torch.float32), weight.dequantize())


class Grids(list):
    """A stand-in for a kernel that collects the grids of its launches."""

    def __getitem__(self, grid):
        self.append(grid)
        return lambda *arguments, **constants: None


@needs_triton
def test_dequantising_more_rows_than_a_grid_takes_several_launches(monkeypatch):
    """The embeddings of Gemma 3 have 262,208 rows."""
    grids = Grids()
    monkeypatch.setattr(expansion_kernel, "_dequantize", grids)
    words, scales = torch.empty(262208, 8, dtype=torch.int32, device="meta"), torch.empty(1, 262208, 1, device="meta")
    expansion_kernel.dequantize(Packed(words, scales, None, 4, 64, 64), torch.float16)
    assert list(grids) == [(1, 65535), (1, 17)]
    monkeypatch.undo()
    monkeypatch.setattr(expansion_kernel, "_MAX_ROWS", 8)
    packed = packed_for(Grid(4, 32, False), 17, 64, 32)
    assert torch.equal(expansion_kernel.dequantize(packed, torch.float16), reference_dequantize(packed, torch.float16))


@needs_triton
@pytest.mark.parametrize(("grid", "shape"), pairs(SHAPES, BITS))
@pytest.mark.parametrize("device", DEVICES)
def test_the_kernel_expands_as_the_reference(grid, shape, device):
    packed = packed_for(grid, *shape)
    for dtype in (torch.float32, torch.float16):
        found = expansion_kernel.dequantize(moved(packed, device), dtype).cpu()
        assert torch.equal(found, reference_dequantize(packed, dtype))


@needs_triton
@pytest.mark.parametrize("name", others())
@pytest.mark.parametrize("device", DEVICES)
def test_the_kernel_expands_codebooks(name, device):
    packed = Packed.of(others()[name])
    found = expansion_kernel.dequantize(moved(packed, device), torch.float32).cpu()
    assert torch.equal(found, reference_dequantize(packed, torch.float32))


@needs_triton
@pytest.mark.parametrize(("grid", "shape"), pairs(SHAPES, MULTIPLIED))
@pytest.mark.parametrize("device", DEVICES)
def test_the_kernel_multiplies_as_the_reference(grid, shape, device):
    packed = packed_for(grid, *shape)
    there = moved(packed, device)
    for rows, dtype, split in ((1, torch.float32, 1), (3, torch.float16, 3)):
        x = torch.randn((rows, packed.inputs), generator=torch.Generator().manual_seed(4)).to(dtype)
        expected, tolerance = reference_matmul(x, packed), 1e-5 if dtype == torch.float32 else 2e-3
        found = kernel.matmul(x.to(device), there, kernel.Tile(16, 32, 4, 8, split))
        close(found.cpu(), expected, tolerance)


@needs_triton
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(
    "shape", [(33, 384, 1, (16, 2, 2, 8)), (40, 640, 11, (32, 1, 4, 16)), (16, 256, 3, (16, 1, 2, 8))]
)
@pytest.mark.parametrize("device", DEVICES)
def test_slices_multiply_as_the_reference(symmetric, shape, device):
    outputs, inputs, rows, tile = shape
    packed = packed_for(Grid(4, 128, symmetric), outputs, inputs, 128)
    x = torch.randn((rows, inputs), generator=torch.Generator().manual_seed(4)).to(torch.float16)
    found = kernel.matmul(x.to(device), moved(packed, device), slices.Slices(*tile)).cpu()
    close(found, reference_matmul(x, packed), 2e-3)


@needs_triton
@pytest.mark.parametrize(
    ("shape", "symmetric"),
    every(
        2,
        [
            ((70, 640, 20, (64, 4, 16, 3, 2)), True),
            ((70, 640, 20, (64, 4, 16, 3, 2)), False),
            ((33, 384, 40, (64, 4, 64, 1, 3)), False),
            ((33, 384, 40, (64, 4, 64, 1, 3)), True),
            ((130, 512, 17, (128, 8, 16, 4, 4)), True),
            ((130, 512, 17, (128, 8, 16, 4, 4)), False),
        ],
    ),
)
@pytest.mark.parametrize("device", DEVICES)
def test_blocks_multiply_as_the_reference_each_time(symmetric, shape, device):
    outputs, inputs, rows, tile = shape
    packed = packed_for(Grid(4, 128, symmetric), outputs, inputs, 128)
    x = torch.randn((rows, inputs), generator=torch.Generator().manual_seed(4)).to(torch.float16)
    first, second = (kernel.matmul(x.to(device), moved(packed, device), blocks.Blocks(*tile)).cpu() for _ in range(2))
    close(first, reference_matmul(x, packed), 2e-3)
    assert torch.equal(first, second)


@needs_triton
def test_tiles_for_a_weight_of_4_bits_in_groups_of_128():
    """Slices for few rows, blocks for many, and both between."""
    assert slices.fits(4, 128, 4096, torch.float16) and not slices.fits(4, 64, 4096, torch.float16)
    for rows in (1, 8, 16, 32, 64):
        for shape in ((4096, 4096), (11008, 4096), (4096, 11008)):
            found = kernel.tiles(rows, shape, 128, sliced=True, early=True)
            assert 5 <= len(found) <= 10 and all(tile.early for tile in found.values())
            kinds = [type(tile) for tile in found.values()]
            assert kinds[0] == (slices.Slices if rows <= 8 else blocks.Blocks)
            assert (slices.Slices in kinds) == (rows <= 32)
    assert next(iter(slices.slices(1, (4096, 4096), True).values())) == slices.Slices(16, 2, 8, 8, True)
    assert next(iter(slices.slices(1, (11008, 4096), True).values())) == slices.Slices(32, 2, 4, 8, True)
    assert next(iter(slices.slices(1, (4096, 11008), True).values())) == slices.Slices(16, 4, 4, 8, True)
    assert next(iter(blocks.blocks(64, (64, 256), 132, False).values())).split == 2


@needs_triton
def test_a_weight_is_read_early_once_it_was_read_before():
    packed = packed_for(Grid(4, 128), 8, 256, 128)
    assert [slices.was_used_before(packed) for _ in range(2)] == [False, True]
    packed.words.add_(1)
    assert [slices.was_used_before(packed) for _ in range(2)] == [False, True]
    with torch.inference_mode():
        inferred = packed_for(Grid(4, 128), 8, 256, 128)
    assert [slices.was_used_before(inferred) for _ in range(2)] == [False, True]
    assert not slices.may_start_early(torch.device("cpu"))


@needs_triton
@pytest.mark.parametrize("bits", [3, 4])
def test_whole_tiles_and_several_rows_multiply(bits):
    packed = packed_for(Grid(bits, 32, False), 64, 64, 32)
    x = torch.randn((70, 64), generator=torch.Generator().manual_seed(4)).to(torch.float16)
    close(kernel.matmul(x, packed), reference_matmul(x, packed), 2e-3)


def test_codes_are_the_mantissas_of_floats():
    """The kernel relies on this; interpreted, it cannot multiply bfloat16."""
    codes = torch.arange(256)
    assert torch.equal((codes | 0x6400).to(torch.int16).view(torch.float16), (1024.0 + codes).to(torch.float16))
    assert torch.equal((codes[:128] | 0x4300).to(torch.int16).view(torch.bfloat16), (128.0 + codes[:128]).bfloat16())


class Rows(list):
    """Stands for activations on a GPU."""

    device, dtype = torch.device("cuda"), torch.float16

    def __init__(self, count):
        super().__init__(range(count))


@needs_triton
def test_every_shape_has_a_tile():
    """Splits fill all processors; a step lies within a group."""
    large = (11008, 4096)
    assert kernel.tile_for(1, large, 128) == kernel.Tile(128, 128, 4, 8, 3)
    assert kernel.tile_for(1, large, 128, processors=58) == kernel.Tile(128, 128, 4, 8, 2)
    assert kernel.tile_for(100, large, 128).rows == 64
    assert kernel.tile_for(1, (40, 96), 32) == kernel.Tile(128, 32, 4, 8, 3)
    assert kernel.tile_for(16, (9, 70), 13).inputs == 64
    assert next(iter(kernel.tiles(1, large, 128).values())) == kernel.tile_for(1, large, 128)


@needs_triton
def test_the_fastest_on_a_device_is_remembered(monkeypatch, tmp_path):
    """The device is not there, and the clock says that the dense product is fastest."""
    packed = packed_for(Grid(4, 32, False), 16, 64, 32)
    times = iter([5.0, 4.0, 5.0, 5.0, 5.0, 5.0, 1.0])

    def seconds(call):
        call()
        return next(times)

    found = choices.Choices(tmp_path / "it.json", "it", "3", seconds)
    monkeypatch.setattr(choices, "of_device", lambda device: found)
    calls = []
    monkeypatch.setattr(w4a16, "_multiply", lambda x, packed, tile: calls.append(tile) or torch.ones(3, 16))
    monkeypatch.setattr(kernel, "processors_of", lambda device: 132)
    monkeypatch.setattr(slices, "may_start_early", lambda device: False)
    x = Rows(3)
    for _ in range(2):
        w4a16.matmul(x, packed)
    assert calls[-2:] == [None, None] and len(calls) == 2 * 7 + 1 + 2  # timed, looked at, beside one; then two products
    name = "w4a16 16x64, 4 bits, groups of 32, zero points, float16, 4 rows"
    assert choices._read(tmp_path / "it.json", "it", "3") == {name: "dense"}


@needs_triton
def test_no_rows_give_an_empty_product():
    packed = packed_for(Grid(4, 32), 8, 64, 32)
    assert kernel.matmul(torch.zeros(0, 64), packed).shape == (0, 8)
    assert expansion_kernel.dequantize(packed.rows(3, 3), torch.float32).shape == (0, 64)


CPU_SHAPES = [(16, 64, 32), (5, 96, -1), (7, 1536, 512), (3, 192, 96), (9, 128, 64)]


@pytest.mark.parametrize(("grid", "shape"), pairs(CPU_SHAPES, BITS))
def test_the_cpu_multiplies_as_the_reference(grid, shape):
    """Activations are rounded to 15 bits, each by at most half a step of the largest in its row."""
    packed = packed_for(grid, *shape)
    weight = cpu.prepare(packed)
    x = torch.randn((3, packed.inputs), generator=torch.Generator().manual_seed(4))
    x[1] *= 1e4
    x[2] = 0
    expected, weights = reference_matmul(x, packed), reference_dequantize(packed, torch.float32)
    step = x.abs().amax(1, keepdim=True) / 16383
    assert ((cpu.matmul(x, weight) - expected).abs() <= 0.51 * step * weights.abs().sum(1)).all()
    rows = torch.empty(2, packed.inputs)
    cpu.dequantize(weight, 1, 3, rows)
    assert torch.equal(rows, reference_dequantize(packed.rows(1, 3), torch.float32))


def test_the_cpu_does_not_overflow():
    """Largest codes, zero points and activations, all of one sign, in the largest chunk."""
    codes = torch.full((4, 512), 255, dtype=torch.uint8)
    for zero in (0, 255):
        zeros = torch.full((4, 1), zero, dtype=torch.uint8)
        packed = Packed.of(QuantizedTensor(codes, torch.ones(1, 4, 1), zeros, 8, 512))
        found = cpu.matmul(torch.full((1, 512), -3.0), cpu.prepare(packed))
        assert torch.allclose(found, torch.full((1, 4), (255.0 - zero) * -3 * 512), rtol=1e-4)


def test_threads_make_no_difference(monkeypatch):
    monkeypatch.setattr(cpu, "_LEAST_WORK", 100)
    packed = packed_for(Grid(4, 32, False), 61, 64, 32)
    x = torch.randn((2, 64), generator=torch.Generator().manual_seed(4))
    assert torch.equal(cpu.matmul(x, cpu.prepare(packed), 3), cpu.matmul(x, cpu.prepare(packed)))


def test_the_cpu_refuses_odd_groups_and_codebooks():
    assert cpu.prepare(packed_for(Grid(4, 32), 4, 130, 13)) is None
    assert cpu.prepare(packed_for(Grid(4, 32), 4, 96, 64)) is None
    assert cpu.prepare(Packed.of(others()["nf4"])) is None


@needs_triton
@pytest.mark.parametrize("bits", [4, 5, 6, 7])
def test_dispatch_expands_for_many_rows_and_for_bits_without_a_kernel(monkeypatch, bits):
    if bits > 4:
        monkeypatch.setattr(kernel, "matmul", None)
    packed = packed_for(Grid(bits, 32), 16, 64, 32, torch.float32)
    for rows in (1, 5, 65):
        x = torch.randn((rows, 64), generator=torch.Generator().manual_seed(4))
        close(w4a16.matmul(x, packed), reference_matmul(x, packed), 1e-5)
    assert torch.equal(dequant.dequantize(packed), reference_dequantize(packed, torch.float32))


@pytest.mark.cuda
@pytest.mark.parametrize("grid", INTEGERS, ids=str)
@pytest.mark.parametrize("rows", [1, 4, 5, 64, 100])
def test_a_gpu_multiplies_as_the_reference(grid, rows):
    weight = rounded(matrix(300, 1024), Grid(grid.bits, 128, grid.symmetric), torch.float16)
    x = torch.randn((rows, 1024), generator=torch.Generator().manual_seed(4)).to(torch.float16)
    found = QuantLinear.of(weight).cuda()(x.cuda()).cpu()
    close(found, reference_matmul(x, Packed.of(weight)), 4e-3)
