"""Compiled kernels keep what they promise, and a kernel that breaks a rule on purpose is found."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from squeeze.errors import SqueezeError
from tests.makers.gpu import compile_for_a_gpu

pytest.importorskip("triton", reason="triton is not installed")

from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

from tests.kernels.launches.launch import folders, of
from tests.kernels.proof.compiled import compile_launch
from tests.kernels.proof.rules import RULES, broken

BROKEN = """
import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

from tests.kernels.proof.compiled import compile_launch
from tests.kernels.launches.launch import meta
from tests.kernels.proof.rules import RULES, broken


@triton.jit
def kernel(out, x, DO: tl.constexpr):
    i = tl.arange(0, 128)
    a = tl.load(x + i)
    if DO == "keeps every rule":
        y = tl.div_rn(a * a + a, tl.sqrt_rn(a))
    elif DO == "fma":
        y = tl.fma(a, a, a)
    elif DO == "approximation":
        y = tl.exp(a)
    elif DO == "flushed":
        y = libdevice.fast_sinf(a)
    elif DO == "atomic":
        tl.atomic_add(out + i, a)
        y = a
    elif DO == "quotient":
        y = libdevice.div_rz(a, a + 1)
    elif DO == "sum":
        y = libdevice.add_rz(a, a)
    elif DO == "conversion":
        y = a.to(tl.bfloat16, fp_downcast_rounding="rtz").to(tl.float32)
    elif DO == "matrix":
        square = tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]
        both = tl.load(x + square).to(tl.float16)
        y = tl.sum(tl.dot(both, both)) + a
    elif DO == "over a block":
        y = a + tl.sum(a * a)
    elif DO == "matrix of single precision":
        square = tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]
        both = tl.load(x + square)
        y = tl.max(tl.max(tl.dot(both, both, input_precision="ieee"), 0), 0) + a
    tl.store(out + i, y)


def found(do, **options):
    out, x = (meta(256, dtype=torch.float32) for _ in range(2))
    run = lambda: kernel[(1,)](out, x, do, **{"enable_fp_fusion": False} | options)
    return [rule for architecture in (80, 90, 100) for rule in broken(compile_launch(run, architecture))]


assert found("keeps every rule") == [], found("keeps every rule")
named = "fma approximation flushed atomic quotient sum conversion matrix".split()
for do, rule in zip(named, RULES, strict=True):
    assert sum(one.startswith(rule) for one in found(do)) >= 3, (do, found(do))
for do in ("over a block", "matrix of single precision"):
    assert found(do).count("a sum of floats over a block") == 3, (do, found(do))
assert any("enable_fp_fusion=False" in one for one in found("keeps every rule", enable_fp_fusion=True))
"""

EXACT = """
from tests.kernels.proof.compiled import compile_launch
from tests.kernels.launches.launch import every
from tests.kernels.proof.rules import ARCHITECTURES, broken

exact = [launch for launch in every() if launch.exact]
first = {launch.name.split()[0].strip(","): launch for launch in reversed(exact)}
fused = {"norm", "gated", "rotary", "heads", "attention", "counts"}
assert set(first) == {"dequant", "device_decode", "trellis"} | fused
for launch in exact if WHOLE else first.values():
    for architecture in ARCHITECTURES if WHOLE else ARCHITECTURES[1:2]:
        assert broken(compile_launch(launch.run, architecture)) == [], launch.name
"""

ALL = """
from tests.kernels.launches.launch import every
from tests.kernels.proof.compiled import compile_launch
from tests.kernels.proof.rules import ARCHITECTURES

for launch in every():
    for architecture in ARCHITECTURES:
        assert compile_launch(launch.run, architecture).spilled <= 256, (launch.name, architecture)
"""


def test_every_kernel_declares_its_launches():
    assert {folder.parent.name for folder in folders()} == {"fused", "kernels", "kv", "packing"}
    for folder in folders():
        assert of(folder), folder


@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_exact_kernels_keep_every_rule(tmp_path, whole):
    """Every launch on every architecture, or one of each kernel on one."""
    compile_for_a_gpu(EXACT.replace("WHOLE", str(whole)), tmp_path)


@pytest.mark.slow
def test_a_kernel_that_breaks_a_rule_is_found(tmp_path):
    compile_for_a_gpu(BROKEN, tmp_path)


@pytest.mark.slow
def test_every_launch_compiles_and_spills_next_to_nothing(tmp_path):
    compile_for_a_gpu(ALL, tmp_path)


INSTRUCTIONS = {
    "fma.rn.f32": 0,
    "mad.rn.f64": 0,
    "ex2.approx.f32": 1,
    "div.full.f32": 1,
    "mul.rn.ftz.f32": 2,
    "atom.global.gpu.acq_rel.add.f32": 3,
    "red.global.add.noftz.bf16x2": 3,
    "sqrt.rz.f32": 4,
    "add.f32": 5,
    "mul.rz.f32": 5,
    "cvt.rz.bf16.f32": 6,
    "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32": 7,
    "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16": 7,
    "tcgen05.mma.cta_group::1.kind::f16": 7,
}
ALLOWED = (
    *("mad.lo.s32", "mul.wide.u32", "add.rn.f32", "mul.rn.bf16x2", "div.rn.f32", "sqrt.rn.f64", "max.f32", "div.s32"),
    *("cvt.rn.bf16.f32", "cvt.rzi.s32.f32", "cvt.f32.bf16", "atom.global.add.u32", "ld.global.v4.b32"),
    *("mma.sync.aligned.m16n8k32.row.col.satfinite.s32.s8.s8.s32", "tcgen05.mma.cta_group::1.kind::i8"),
)


def made_of(*opcodes, fused=False):
    ptx = "".join(f"\t@%p1 {opcode} \t%r1, %r2, %r3;\n" for opcode in opcodes)
    return SimpleNamespace(ptx=ptx, ttir="", fused=fused)


@pytest.mark.parametrize("opcode", INSTRUCTIONS)
def test_an_instruction_that_breaks_a_rule_is_named(opcode):
    assert f"{list(RULES)[INSTRUCTIONS[opcode]]}: {opcode}" in broken(made_of("add.s32", opcode))


def test_allowed_instructions_break_no_rule():
    assert broken(made_of(*ALLOWED)) == []
    assert len(broken(made_of(*ALLOWED, fused=True))) == 1


def test_a_process_that_interprets_kernels_does_not_compile_them():
    with pytest.raises(SqueezeError, match="not compiled here, but interpreted: unset TRITON_INTERPRET"):
        compile_launch(lambda: None, 90)


@pytest.mark.parametrize("folder", [one for one in folders() if one.parent.name != "fused"], ids=lambda one: one.name)
def test_a_launch_makes_the_device_of_its_tensors_the_current_one(folder, monkeypatch):
    """The kernels of lm/fused are left out: the network sets the device for all of them at once."""
    current, launches = [], []

    @contextmanager
    def device_of_tensor(tensor):
        current.append(tensor.device.type)
        yield
        current.pop()

    monkeypatch.setattr(torch.cuda, "device_of", device_of_tensor)
    for kind in (InterpretedFunction, JITFunction):
        monkeypatch.setattr(kind, "run", lambda self, *given, **options: launches.append(list(current)))
    typical = of(folder)
    for launch in typical:
        launch.run()
    assert launches == [["meta"]] * len(typical) and not current
