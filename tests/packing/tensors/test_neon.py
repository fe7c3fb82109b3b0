"""Loops over tensors are vector code on 64-bit Arm: LLVM compiles for it on any machine, where only some can run it."""

import re

import llvmlite.binding as llvm
import pytest
from llvmlite import ir

from squeeze.numerics import machine_code, words
from squeeze.packing.tensors import fixed_groups, rans_vectors

TRIPLE = "aarch64-unknown-linux-gnu"
NUMBER = ir.IntType(64)


def instructions(make, pointers, numbers):
    """The names of the instructions of a function: make(builder, pointers, numbers) fills it. pointers: bits of what
    each points to."""
    module = ir.Module()
    module.triple = TRIPLE
    kinds = [ir.IntType(bits).as_pointer() for bits in pointers]
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [*kinds, *[NUMBER] * numbers]), "loop")
    builder = ir.IRBuilder(function.append_basic_block())
    make(builder, list(function.args[: len(pointers)]), list(function.args[len(pointers) :]))
    builder.ret_void()
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    try:
        machine = llvm.Target.from_triple(TRIPLE).create_target_machine(cpu="neoverse-n1", opt=3)
    except RuntimeError:
        pytest.skip("this LLVM makes no code for Arm")
    parsed = llvm.parse_assembly(str(module))
    passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(3))
    passes.getModulePassManager().run(parsed, passes)
    found = re.findall(r"^\t([a-z]\S*)", machine.emit_assembly(parsed), re.MULTILINE)
    assert "bl" not in found, "a call"
    return set(found)


@pytest.fixture(autouse=True)
def neon(monkeypatch):
    monkeypatch.setattr(machine_code, "has", {"neon"}.__contains__)
    monkeypatch.setattr(rans_vectors, "_Kind", words.kind())
    monkeypatch.setattr(fixed_groups, "_NEON", True)


DECODING, ENCODING = {"addv", "cmhi", "mla", "tbl", "uzp1"}, {"addv", "frecpe", "frecps", "tbl", "uzp1"}
LOOPS = [  # what fills it; bits of what its arrays hold after its values, and how many numbers follow; instructions
    (lambda loop: rans_vectors._decode_rows(loop, 1, True, False), (32, 16, 32, 32, 64), 7, DECODING),
    (lambda loop: rans_vectors._decode_rows(loop, 1, False, True), (32, 16, 32, 32, 64), 7, DECODING),
    (lambda loop: rans_vectors._encode_rows(loop, True), (32, 16, 32, 64), 4, ENCODING),
    (lambda loop: rans_vectors._encode_rows(loop, False), (32, 16, 32, 64), 4, ENCODING),
    (rans_vectors._pack_rows, (32,), 6, {"orr", "ushl"}),
]


@pytest.mark.parametrize("bits", [8, 16, 32])
@pytest.mark.parametrize("lanes", [rans_vectors.LANES, rans_vectors.HALF])
@pytest.mark.parametrize(("fill", "arrays", "numbers", "expected"), LOOPS)
def test_rans_compiles_to_the_instructions_of_neon(bits, lanes, fill, arrays, numbers, expected):
    found = instructions(lambda *parts: fill(rans_vectors._Loop(*parts, lanes)), (bits, *arrays), numbers)
    assert expected <= found and "udiv" not in found


@pytest.mark.parametrize(("bits", "prefix_bits"), [(8, 8), (8, 4), (16, 8), (16, 5), (32, 8)])
def test_fixed_codes_compile_to_the_instructions_of_neon(bits, prefix_bits):
    def group(builder):
        return fixed_groups._Group(builder, bits, prefix_bits, turned=True)

    def split(builder, pointers, numbers):
        builder.store(fixed_groups._split(group(builder), *pointers[:3], numbers), pointers[3])

    def join(builder, pointers, numbers):
        made, (out, coded, others) = group(builder), pointers
        fixed_groups._join(made, out, coded, lambda _: made.load(others, fixed_groups._BYTES), numbers)

    assert {"addv", "cmeq"} <= instructions(split, [bits, 8, 8, 64], 3)
    found = instructions(join, [bits, 8, 8], 3)
    assert "tbl" in found and not {"sbfx", "ubfx"} & found, "bits that are taken one by one"


@pytest.mark.parametrize("way", ["compress", "expand"])
def test_bytes_are_moved_by_a_mask(way):
    def move(builder, pointers, numbers):
        fixed_groups._move_eights(fixed_groups._of_prefixes(builder, None), way, pointers[0], numbers[0], pointers[1])

    found = instructions(move, [8, 8], 1)
    assert {"cnt", "tbl"} <= found and not {"cbz", "cbnz", "b.ne"} & found
