"""Blocks of GGUF's types: the gguf package reads what our own grids mean, to the bit, and scales are good ones."""

import gguf
import numpy as np
import pytest
import torch

from squeeze.errors import SqueezeError
from squeeze.options import options_of
from squeeze.quant.block_grid import BlockParams, moved
from squeeze.quant.block_layout import FIELDS
from squeeze.quant.blocks import FALLBACKS, GRIDS, BlockTensor, grid_of, outer_type, type_for, type_of
from squeeze.quant.gptq import GPTQ
from squeeze.quant.lattice import LatticeGrid
from squeeze.quant.refine import refine
from squeeze.quant.rtn import RTN
from squeeze.quant.scales import round_scale
from squeeze.recipes.options import AUTO, MIXTURES, SAME, Quantizing
from tests.makers.layers import problem


def read(tensor: BlockTensor) -> torch.Tensor:
    """Return what the gguf package makes of a tensor's blocks."""
    kind = gguf.GGMLQuantizationType[type_of(tensor.grid.name).upper()]
    return torch.from_numpy(gguf.quants.dequantize(tensor.blocks().numpy(), kind))


def at_random(name: str) -> BlockTensor:
    """Any codes, any factors and any steps that there can be."""
    grid, random = GRIDS[name], torch.Generator().manual_seed(1)
    codes = torch.randint(0, len(grid.levels), (5, 512), dtype=torch.uint8, generator=random)
    if isinstance(grid, LatticeGrid):
        points = grid.points[torch.randint(0, len(grid.points), (5, 512 // grid.length), generator=random)].flatten(1)
        signs = torch.where(codes % 2 == 0, 1, -1).unflatten(1, (-1, grid.dims))
        if grid.even:
            signs[..., -1] *= signs.prod(2)
        codes = grid.codes_of(points * signs.flatten(1))
    parts, blocks = 1 + grid.offsets, 512 // grid.width
    factors = grid.stored(torch.randn((parts, 5, blocks), generator=random))
    steps = None
    if grid.steps:
        low, high = grid.steps
        steps = torch.randint(low, high + 1, (1, 5, 512 // grid.size), generator=random).float()
        steps = 2 * (steps // 2) + 1 if isinstance(grid, LatticeGrid) else steps
        if grid.offsets:
            steps = torch.cat([steps, torch.randint(0, high + 1, steps.shape, generator=random).float()])
    return BlockTensor.of(grid, codes, grid.params(factors, steps))


def same(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Equal in every bit but the sign of a zero."""
    return torch.equal((first + 0.0).view(torch.int32), (second + 0.0).view(torch.int32))


@pytest.mark.parametrize("name", GRIDS)
def test_the_package_reads_any_block_as_we_do(name):
    tensor = at_random(name)
    assert same(read(tensor), tensor.dequantize())
    size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[type_of(name).upper()]]
    assert (tensor.grid.width, tensor.grid.block_bytes) == size
    assert tensor.stored_bits == 8 * tensor.blocks().numel()


@pytest.mark.parametrize("name", GRIDS)
@pytest.mark.parametrize("method", [RTN, GPTQ])
def test_the_package_reads_what_methods_make(name, method):
    weight, hessian = problem(8, 512, tokens=600)
    tensor = method(grid=name).compress(weight, hessian).tensor
    assert same(read(tensor), tensor.dequantize())
    assert torch.isfinite(tensor.dequantize()).all()


def test_every_type_can_be_asked_for():
    choices = next(
        set(option.choices) - {AUTO, SAME, *MIXTURES} for option in options_of(Quantizing) if option.name == "type"
    )
    assert set(map(grid_of, choices)) == set(GRIDS) and choices == set(map(type_of, GRIDS))
    assert FIELDS.keys() == GRIDS.keys()
    assert set(FALLBACKS) == {name for name, grid in GRIDS.items() if grid.width == 256}


@pytest.mark.parametrize("name", ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "tq1_0", "tq2_0", "mxfp4"])
def test_scales_are_better_than_the_packages(name):
    weight, hessian = problem(16, 512, tokens=600)
    importance = hessian.diagonal()
    theirs = gguf.quants.quantize(weight.numpy(), gguf.GGMLQuantizationType[name.upper()])
    theirs = torch.from_numpy(gguf.quants.dequantize(theirs, gguf.GGMLQuantizationType[name.upper()]))
    grid = GRIDS[grid_of(name)]
    groups = weight.unflatten(1, (-1, grid.size))
    params = grid.fit(groups, importance.reshape(1, -1, grid.size), torch.float16)
    ours = grid.decode(grid.encode(groups, params), params).flatten(1)
    assert ((ours - weight).square() * importance).sum() < ((theirs - weight).square() * importance).sum()


@pytest.mark.parametrize("name", GRIDS)
def test_weights_on_the_grid_stay_what_they_are(name):
    weight = at_random(name).dequantize()
    found = RTN(grid=name).apply(weight).dequantize()
    relative = float((found - weight).square().mean() / weight.square().mean())
    assert relative < {2: 0.03, 3: 0.01}.get(GRIDS[name].bits, 0.002)


@pytest.mark.parametrize("name", GRIDS)
def test_rounds_of_refinement_never_raise_the_error(name):
    weight, hessian = problem(4, 256, tokens=300)
    errors = []
    for rounds in range(3):
        found = GPTQ(grid=name, refine=rounds).apply(weight, hessian).dequantize() - weight
        errors.append(float(((found @ hessian) * found).sum()))
    assert errors[0] > errors[1] > errors[2]


@pytest.mark.parametrize("name", ["q4_0", "q4_1", "q2_k", "q6_k"])
def test_refitted_scales_are_those_of_least_squares(name):
    """Against the error of each stored number a step away: none alone lowers it."""
    grid, (weight, hessian) = GRIDS[name], problem(3, 256, tokens=400)
    groups = weight.unflatten(1, (-1, grid.size))
    params = grid.fit(groups, None, torch.float16)
    codes = grid.encode(groups, params).flatten(1)
    for _ in range(30):
        params = grid.refit(weight, hessian, codes, params)

    def error(changed: BlockParams) -> torch.Tensor:
        found = grid.decode(codes.unflatten(1, (-1, grid.size)), changed).flatten(1) - weight
        return ((found.double() @ hessian.double()) * found).sum(1)

    least = error(params)
    for part in range(len(params.factors)):
        for block in range(params.factors.shape[-1]):
            for toward in (-torch.inf, torch.inf):
                factors = params.factors.half().clone()
                other = np.nextafter(factors[part, :, block].numpy(), np.float16(toward))
                factors[part, :, block] = torch.from_numpy(other)
                assert (error(grid.params(factors.float(), params.steps)) > least * (1 - 1e-5)).all()
        for group in range(params.steps.shape[-1] if grid.steps else 0):
            for step in (-1, 1):
                steps = params.steps.clone()
                steps[part, :, group] = (steps[part, :, group] + step).clamp(
                    0 if part else grid.steps[0], grid.steps[1]
                )
                assert (error(grid.params(params.factors, steps)) > least * (1 - 1e-5)).all()


@pytest.mark.parametrize("name", GRIDS)
def test_zeros_stay_zeros(name):
    weight = torch.zeros((3, 512))
    weight[2, 300:] = torch.linspace(-1, 1, 212)
    found = RTN(grid=name).apply(weight).dequantize()
    assert (found[:2] == 0).all() and (found[2, :256] == 0).all()


def test_rows_that_are_no_whole_blocks_are_refused():
    for name, inputs in (("q4_0", 40), ("q4_k", 288)):
        with pytest.raises(SqueezeError, match=rf"^{name} needs a multiple of \d+ inputs, got {inputs}$"):
            RTN(grid=name).apply(torch.ones(2, inputs))


def test_what_takes_the_place_of_a_type_that_does_not_fit():
    assert type_for("q4_k", 512) == "q4_k"
    assert {name: type_for(name, 576) for name in FALLBACKS} == FALLBACKS
    assert type_for("q4_k", 40) is type_for("q8_0", 40) is None
    assert outer_type("q4_k", 512, output=True) == outer_type("q4_0", 512, output=True) == "q6_k"
    assert outer_type("q4_k", 576, output=True) == outer_type("q4_0", 576, output=True) == "q8_0"
    assert outer_type("q8_0", 512, output=True) == "q8_0"
    assert outer_type("q3_k", 512, output=False) == "q3_k"


def test_a_masked_code_stays():
    weight, hessian = problem(4, 256)
    method = GPTQ(grid="q4_k")
    params = method.fit(weight, None, torch.float16)
    codes = method.as_quantizer().encode(weight.unflatten(1, (-1, 32)), params).flatten(1)
    found, _ = refine(
        method, weight, hessian, codes, params, torch.float16, torch.zeros(weight.shape, dtype=torch.bool)
    )
    assert torch.equal(found, codes)


def test_a_scale_that_is_moved_is_one_that_can_be_stored():
    """Even where none above 0 would be best, and the least is far below what it was."""
    generator = torch.Generator().manual_seed(0)
    parts = torch.randn(1, 3, 8, generator=generator)
    before, pull = torch.full((1, 3), 2.0**-6), -parts[0].clone()
    after = moved(before, parts, pull, torch.eye(8), slice(0, 8), lambda scale: round_scale("power", scale, None))
    assert torch.equal(after, torch.full((1, 3), 2.0**-126))
    assert torch.allclose(pull, (2.0**-6 - 1) * parts[0])
