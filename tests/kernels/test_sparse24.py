"""Kernels on 2:4 weights: Triton's equal the reference, on odd shapes too."""

from types import SimpleNamespace

import pytest
import torch

from squeeze.checkpoint.pattern import Pattern
from squeeze.checkpoint.sparse import SparseTensor
from squeeze.kernels import sparse24
from squeeze.kernels.sparse24 import Packed24, Runtime, reference
from squeeze.prune.magnitude import Magnitude
from squeeze.prune.sparsegpt import SparseGPT
from squeeze.quant.gptq import GPTQ
from tests.makers.gpu import DEVICES, compile_for_a_gpu, moved

try:
    from squeeze.kernels.sparse24 import kernel
except ImportError:
    kernel = None
needs_triton = pytest.mark.skipif(kernel is None, reason="triton is not installed")

SHAPES = [(16, 64), (5, 96), (70, 160), (1, 32)]  # output channels, inputs


def weights(outputs, inputs):
    """A 2:4 weight of floats, and of codes with and without zero points."""
    weight = torch.randn((outputs, inputs), generator=torch.Generator().manual_seed(outputs))
    weight[0, :7] = 0  # groups of fewer than two values
    yield Magnitude().apply(weight)
    for symmetric in (True, False):
        grid = GPTQ(bits=4, group_size=32, symmetric=symmetric, refine=0)
        yield SparseGPT(quantizer=grid, refine=0, reconstruct=1).apply(weight, torch.eye(inputs))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_reference_is_the_weight(shape):
    for weight in weights(*shape):
        assert sparse24.can_pack(weight)
        packed = Packed24.of(weight, torch.float32)
        torch.testing.assert_close(reference.dense(packed), weight.dequantize())


@needs_triton
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("device", DEVICES)
def test_kernels_are_the_reference(shape, dtype, device):
    for weight in weights(*shape):
        packed = Packed24.of(weight, dtype)
        there = moved(packed, device)
        for rows, product in ((1, kernel.gemv), (3, kernel.gemv), (3, kernel.gemm), (19, kernel.gemm)):
            x = torch.randn((rows, shape[1]), generator=torch.Generator().manual_seed(rows)).to(dtype)
            wanted = reference.matmul(x, packed).float()
            found = product(x.to(device), there)
            assert found.dtype == dtype
            limit = (1e-5 if dtype == torch.float32 else 4e-3) * wanted.abs().max()
            assert (found.cpu().float() - wanted).abs().max() <= limit


def test_what_the_kernels_cannot_take():
    weight = torch.randn(8, 64)
    assert not sparse24.can_pack(Magnitude(pattern=Pattern(4, 8)).apply(weight))
    assert not sparse24.can_pack(Magnitude().apply(weight[:, :60]))
    three = SparseGPT(quantizer=GPTQ(bits=3, group_size=32), refine=0, reconstruct=1).apply(weight, torch.eye(64))
    assert not sparse24.can_pack(three)


def test_the_cpu_multiplies_by_the_dense_weight():
    weight = next(weights(16, 64))
    runtime = sparse24.prepare(weight, torch.float32, torch.device("cpu"))
    x = torch.randn(3, 64)
    assert isinstance(runtime, Runtime) and isinstance(weight, SparseTensor) and runtime.packed is None
    assert torch.equal(runtime.multiply(x), x @ weight.dequantize().T)
    torch.testing.assert_close(sparse24.matmul(x, Packed24.of(weight, torch.float32)), x @ weight.dequantize().T)


@pytest.mark.parametrize(
    "name, chosen",
    [("NVIDIA H100 80GB HBM3", "structured"), ("NVIDIA L40", "dense"), ("AMD Instinct MI300X", "dense")],
)
def test_what_is_chosen_on_a_gpu_by_its_name(name, chosen, monkeypatch):
    """On one of which nothing is known the dense product is: no guess, and no error in the middle of a forward pass."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    large = SimpleNamespace(packed=SimpleNamespace(scales=None), weight=torch.empty(4096, 4096), device="cuda")
    assert sparse24.choose(large, 1) == chosen
    weight, x = Magnitude().apply(torch.randn(16, 64)), torch.randn(3, 64)
    runtime = Runtime(weight, torch.float32, torch.device("cpu"), Packed24.of(weight))
    assert torch.equal(runtime.multiply(x), x @ weight.dequantize().T)


@needs_triton
@pytest.mark.slow
def test_kernels_compile_for_a_gpu(tmp_path):
    compile_for_a_gpu(
        """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from squeeze.kernels.sparse24 import kernel

pointers = {"out": "*bf16", "x": "*bf16", "places": "*i32", "scales": "*bf16", "zeros": "*u8"}
numbers = ["rows", "outputs", "inputs", "groups", "group_size", "split_inputs"]
for function, tile, more in ((kernel._gemv, kernel.GEMV, {}), (kernel._gemm, kernel.GEMM, {"M": 16})):
    for codes in (True, False):
        types = {**pointers, "values": "*i32" if codes else "*bf16", **dict.fromkeys(numbers, "i32")}
        constants = {"CODES": codes, "HAS_ZEROS": codes, "N": tile.outputs, "K": tile.inputs, **more}
        types = {name: types.get(name, "constexpr") for name in function.arg_names}
        triton.compile(ASTSource(function, types, constants), GPUTarget("cuda", 90, 32))
""",
        tmp_path,
    )
