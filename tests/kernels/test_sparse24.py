"""Kernels on 2:4 weights: Triton's equal the reference, on odd shapes too."""

import json
from types import SimpleNamespace

import pytest
import torch

from squeeze.checkpoint.pattern import Pattern
from squeeze.checkpoint.sparse import SparseTensor
from squeeze.kernels import choices, sparse24
from squeeze.kernels.sparse24 import Packed24, Runtime, dense_weight, reference_matmul
from squeeze.prune.scores import Magnitude
from squeeze.prune.sparsegpt import SparseGPT
from squeeze.quant.gptq import GPTQ
from tests.makers.cases import all_slow_but
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
def test_the_reference_expands_to_the_weight(shape):
    for weight in weights(*shape):
        assert sparse24.can_pack(weight)
        packed = Packed24.of(weight, torch.float32)
        torch.testing.assert_close(dense_weight(packed), weight.dequantize())


@needs_triton
@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        *((torch.float32, shape) for shape in SHAPES),
        *all_slow_but([(torch.float16, SHAPES[1])], ((torch.float16, shape) for shape in SHAPES)),
    ],
    ids=str,
)
@pytest.mark.parametrize("device", DEVICES)
def test_kernels_equal_the_reference(shape, dtype, device):
    for weight in weights(*shape):
        packed = Packed24.of(weight, dtype)
        there = moved(packed, device)
        for rows, product in ((1, kernel.gemv), (3, kernel.gemv), (3, kernel.gemm), (19, kernel.gemm)):
            x = torch.randn((rows, shape[1]), generator=torch.Generator().manual_seed(rows)).to(dtype)
            wanted = reference_matmul(x, packed).float()
            found = product(x.to(device), there)
            assert found.dtype == dtype
            limit = (1e-5 if dtype == torch.float32 else 4e-3) * wanted.abs().max()
            assert (found.cpu().float() - wanted).abs().max() <= limit


def test_refuses_weights_that_the_kernels_cannot_take():
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


class Rows(list):
    """Stands for activations on a GPU."""

    device, dtype, requires_grad = torch.device("cuda"), torch.float16, False


def on_a_gpu(monkeypatch, tmp_path, name, seconds):
    """A GPU that is not there, and what its clock says."""
    found = choices.Choices(tmp_path / "it.json", name, "3", lambda call: seconds.get(call()))
    monkeypatch.setattr(choices, "of_device", lambda device: found)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    monkeypatch.setattr(choices, "close_to", lambda right: lambda result: result != "wrong")
    monkeypatch.setattr(Runtime, "multiply_by", lambda self, product, x: product)
    floats, codes = ({"scales": scales, "zeros": None, "group_size": 32} for scales in (None, 1))
    return SimpleNamespace(**floats), SimpleNamespace(**codes)


@pytest.mark.parametrize(
    "name, chosen",
    [("NVIDIA H100 80GB HBM3", "structured"), ("NVIDIA L40", "dense"), ("AMD Instinct MI300X", "dense")],
)
def test_the_prediction_decides_if_nothing_can_be_measured(name, chosen, monkeypatch, tmp_path):
    """On an unknown GPU the dense product is used, without an error in the middle of a pass."""
    floats, _ = on_a_gpu(monkeypatch, tmp_path, name, {})
    runtime = Runtime(torch.empty(4096, 4096), torch.float16, "cuda", floats)
    assert runtime.multiply(Rows([0])) == chosen
    assert not (tmp_path / "it.json").exists()


@pytest.mark.parametrize(
    "rows, codes, shape, seconds, chosen",
    [
        (1, False, (4096, 4096), {"dense": 3.0, "kernel": 1.0, "structured": 2.0}, "kernel"),
        (3, False, (4096, 4096), {"dense": 3.0, "kernel": 4.0, "structured": 2.0}, "structured"),
        (3, False, (4096, 4096), {"dense": 2.0, "kernel": 4.0, "structured": 2.1}, "dense"),
        (999, False, (4096, 4096), {"dense": 3.0, "structured": 2.0}, "structured"),  # nothing else is asked
        (3, False, (40, 96), {"dense": 3.0, "kernel": 2.0}, "kernel"),
        (3, True, (4096, 4096), {"dense": 3.0, "kernel": 2.0}, "kernel"),
    ],
)
def test_the_fastest_is_measured_once(rows, codes, shape, seconds, chosen, monkeypatch, tmp_path):
    packed = on_a_gpu(monkeypatch, tmp_path, "any GPU", seconds)[codes]
    runtime, x = Runtime(torch.empty(shape), torch.float16, "cuda", packed), Rows(range(rows))
    assert [runtime.multiply(x) for _ in range(2)] == [chosen] * 2
    bits = "4 bits, groups of 32" if codes else "16 bits"
    assert json.loads((tmp_path / "it.json").read_text())["chosen"] == {
        f"2:4 {shape[0]}x{shape[1]}, {bits}, float16, {1 << (rows - 1).bit_length()} row" + "s" * (rows > 1): chosen
    }


def test_everything_that_decides_the_time_is_in_the_description(monkeypatch, tmp_path):
    """Group sizes, zero points and ranks of adapters are measured apart."""
    packed = on_a_gpu(monkeypatch, tmp_path, "any GPU", {"dense": 2.0, "kernel": 1.0})[True]
    packed.zeros, adapters = 1, (torch.empty(7, 64), torch.empty(7, 96))
    for group_size in (32, 128):
        packed.group_size = group_size
        for given in (None, adapters):
            runtime = Runtime(torch.empty(64, 96), torch.float16, "cuda", packed, given)
            assert runtime.multiply(Rows([0])) == "kernel"
    assert list(json.loads((tmp_path / "it.json").read_text())["chosen"]) == [
        f"2:4 64x96, 4 bits, groups of {group_size}, zero points{adapted}, float16, 1 row"
        for group_size in (32, 128)
        for adapted in ("", ", adapters of rank 7")
    ]


def test_codes_of_many_rows_are_multiplied_densely(monkeypatch, tmp_path):
    _, codes = on_a_gpu(monkeypatch, tmp_path, "NVIDIA H100 80GB HBM3", {"dense": 1.0})
    assert Runtime(torch.empty(64, 64), torch.float16, "cuda", codes).multiply(Rows(range(5))) == "dense"
    assert not (tmp_path / "it.json").exists()


def test_forms_built_for_a_measurement_are_dropped(monkeypatch, tmp_path):
    weight = Magnitude().apply(torch.randn(16, 64))
    runtime = Runtime(weight, torch.float16, torch.device("cpu"), Packed24.of(weight))
    on_a_gpu(monkeypatch, tmp_path, "any GPU", {"dense": 2.0, "kernel": 1.0})
    monkeypatch.setattr(Runtime, "multiply_by", lambda self, product, x: self.dense(x.dtype) is None or product)
    assert sparse24.choose(runtime, Rows([0])) == "kernel" and runtime._dense is None


def test_every_product_gives_the_same_result():
    """The CPU has the dense product alone; a gradient passes through the dense weight."""
    weight, x = Magnitude().apply(torch.randn(16, 64)), torch.randn(3, 64)
    runtime = Runtime(weight, torch.float32, torch.device("cpu"), Packed24.of(weight, torch.float32))
    assert runtime.products(x) == ["dense"]
    assert torch.equal(runtime.multiply(x), x @ weight.dequantize().T)
    torch.testing.assert_close(runtime.multiply_by("kernel", x), x @ weight.dequantize().T)
    x.requires_grad_()
    runtime.multiply(x).sum().backward()
    torch.testing.assert_close(x.grad, weight.dequantize().sum(0).expand(3, -1))


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
