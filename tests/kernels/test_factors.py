"""Products with factorised matrices: the references equal the dense product, the Triton kernels the references."""

import pytest
import torch

from squeeze.factor.networks import Blast, MonarchMatrix, TTMatrix, TuckerMatrix
from squeeze.kernels import blr, lowrank, tt
from tests.makers.gpu import DEVICES, compile_for_a_gpu

MODULES = {
    name: pytest.importorskip(f"squeeze.kernels.{name}.kernel", reason="triton is not installed")
    for name in ("blr", "lowrank", "tt")
}


def cores(*shapes):
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def on(device, tensors):
    return [tensor.to(device) for tensor in tensors]


def near(found, wanted, tolerance=1e-5):
    assert found.shape == wanted.shape
    found = found.cpu()
    assert (found - wanted).norm() <= tolerance * wanted.norm()


TRAINS = {
    "two cores": [(1, 6, 5, 9), (9, 7, 4, 1)],
    "three cores": [(1, 3, 5, 4), (4, 2, 3, 7), (7, 5, 2, 1)],
    "rank 1": [(1, 3, 4, 1), (1, 2, 5, 1)],
    "cheaper from the left": [(1, 2, 40, 3), (3, 50, 2, 1)],
    "cheaper from the right": [(1, 50, 2, 3), (3, 2, 40, 1)],
}
RINGS = {"a ring of two": [(3, 4, 5, 2), (2, 3, 4, 3)], "a ring of three": [(2, 4, 3, 5), (5, 2, 3, 3), (3, 2, 4, 2)]}


@pytest.mark.parametrize("name", TRAINS | RINGS)
@pytest.mark.parametrize("rows", [1, 5])
def test_trains_and_rings_multiply_as_their_dense_matrices(name, rows):
    parts = cores(*(TRAINS | RINGS)[name])
    form = TTMatrix(tuple(parts))
    (x,) = cores((rows, form.shape[1]))
    near(tt.reference_multiply(x, parts), x @ form.dequantize().T)


@pytest.mark.parametrize("name", TRAINS)
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("device", DEVICES)
def test_the_kernel_of_trains_equals_the_reference(name, rows, device):
    parts = cores(*TRAINS[name])
    (x,) = cores((rows, TTMatrix(tuple(parts)).shape[1]))
    near(MODULES["tt"].multiply(x.to(device), on(device, parts)), tt.reference_multiply(x, parts))


@pytest.mark.parametrize("outputs, inputs, rank", [(40, 70, 5), (17, 33, 20), (64, 64, 16), (1, 1, 1)])
@pytest.mark.parametrize("rows", [1, 18])
@pytest.mark.parametrize("device", DEVICES)
def test_the_kernel_of_pairs_equals_the_reference(outputs, inputs, rank, rows, device):
    x, left, right = cores((rows, inputs), (outputs, rank), (rank, inputs))
    near(MODULES["lowrank"].multiply(*on(device, (x, left, right))), lowrank.reference_multiply(x, left, right))
    near(lowrank.reference_multiply(x, left, right), x @ (left @ right).T)


@pytest.mark.parametrize("p, q, o, i, rank", [(2, 3, 5, 7, 2), (4, 4, 20, 33, 9), (1, 1, 70, 3, 40)])
@pytest.mark.parametrize("rows", [1, 18])
@pytest.mark.parametrize("device", DEVICES)
def test_block_low_rank_products_are_those_of_the_dense_matrices(p, q, o, i, rank, rows, device):
    x, outer, inner = cores((rows, q * i), (p, o, q * rank), (q, p * rank, i))
    near(blr.reference_monarch(x, outer, inner), x @ MonarchMatrix(outer, inner).dequantize().T)
    near(MODULES["blr"].monarch(*on(device, (x, outer, inner))), blr.reference_monarch(x, outer, inner))
    bases, mix, shared = cores((p, o, rank), (p, q, rank), (q, rank, i))
    near(blr.blast(x, bases, mix, shared), x @ Blast(bases, mix, shared).dequantize().T)


def test_tucker_products_are_those_of_the_dense_matrix():
    core, first, second, third, x = cores((2, 3, 4), (5, 2), (6, 3), (4, 9), (7, 9))
    form = TuckerMatrix(core, first, second, third)
    near(form.multiply(x), x @ form.dequantize().T)


def test_the_order_of_contraction_is_the_cheaper_one():
    shapes = TRAINS["cheaper from the left"]
    assert tt.cost(shapes, True) == 40 * 2 * 2 * 3 + 2 * 3 * 2 * 50 < tt.cost(shapes, False)
    shapes = TRAINS["cheaper from the right"]
    assert tt.cost(shapes, False) < tt.cost(shapes, True)


def test_many_rows_use_the_dense_matrix_if_that_is_cheaper(monkeypatch):
    parts = cores((1, 6, 5, 9), (9, 7, 4, 1))
    form, shapes = TTMatrix(tuple(parts)), [part.shape for part in parts]
    each = min(tt.cost(shapes, True), tt.cost(shapes, False))
    least = 42 * 20 * 9 // (each - 42 * 20) + 1  # rows from which it pays
    assert tt.rows_to_expand(tuple(shapes)) == least > 1
    assert tt.rows_to_expand(tuple(TRAINS["rank 1"])) == float("inf")
    few, many = cores((least - 1, 20), (least, 20))
    wanted = [x @ form.dequantize().T for x in (few, many)]
    monkeypatch.setattr(TTMatrix, "dequantize", lambda self, dtype=None: pytest.fail("expanded"))
    near(form.multiply(few), wanted[0])
    monkeypatch.undo()
    monkeypatch.setattr(tt, "reference_multiply", lambda x, cores: pytest.fail("not expanded"))
    near(form.multiply(many), wanted[1])


SCRIPT = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from squeeze.kernels.blr import kernel as blr
from squeeze.kernels.lowrank import kernel as lowrank
from squeeze.kernels.tt import kernel as tt

TILES = {"T": 16, "N": 64, "R": 32, "K": 32}
for kernel, tensors, constants in (
    (lowrank._pair, 4, {"T": 16, "R": 16, "K": 64}),
    (blr._monarch, 4, TILES),
    (tt._two, 4, {"R": 8, "A": 32, "B": 32, "C": 32, "D": 32}),
):
    names = kernel.arg_names
    types = {n: "constexpr" if n in constants else "*fp32" if i == 0 and kernel in (lowrank._pair, tt._two)
             else "*bf16" if i < tensors else "i32" for i, n in enumerate(names)}
    source = ASTSource(fn=kernel, signature=types, constexprs={(names.index(n),): v for n, v in constants.items()})
    triton.compile(source, target=GPUTarget("cuda", 90, 32))
"""


@pytest.mark.slow
def test_the_kernels_compile_for_a_gpu(tmp_path):
    compile_for_a_gpu(SCRIPT, tmp_path)
