"""Rules for kernels that promise the bits of their reference, checked in what Triton compiles.

IEEE 754 defines one result for each sum, product, quotient and square root that is rounded by itself, to nearest. Other
operations are found in the kernel's PTX. A sum over a block, whose order the compiler chooses, is found in its Triton
IR. ptxas changes nothing: without `enable_fp_fusion` it runs with --fmad=false.

Exact are device_decode and trellis, which use integers alone, dequant, which rounds every operation as torch does, and
the kernels of squeeze/lm/fused. Products of activations with weights sum in an order of their own, and are only close.
"""

from __future__ import annotations

import re

from tests.kernels.proof.compiled import Compiled

__all__ = ["ARCHITECTURES", "RULES", "broken"]

ARCHITECTURES = (80, 90, 100)

_FLOAT = r"\.(?:b?f16|tf32|f32|f64|e\dm\d)(?:x\d)?"
RULES = {  # patterns of an instruction, whole
    "a product and a sum rounded once (fma, mad)": rf"(?:fma|mad)\b.*{_FLOAT}.*",
    "an approximation (.approx, .full)": r".*\.(?:approx|full)\b.*",
    "subnormal numbers flushed to zero (.ftz)": r".*\.ftz\b.*",
    "an atomic operation on floats (atom, red)": rf"(?:atom|red)\b.*{_FLOAT}.*",
    "a quotient or root that is not rounded to nearest (.rn)": rf"(?:div|rcp|sqrt|rsqrt)\b(?!.*\.rn\b).*{_FLOAT}.*",
    "a sum or product that is not rounded to nearest by itself (.rn)": rf"(?:add|sub|mul)\b(?!.*\.rn\b).*{_FLOAT}.*",
    "a conversion that is not rounded to nearest (.rn)": rf"cvt\.(?:rz|rm|rp|rna)\b.*{_FLOAT}{_FLOAT}",
    "a matrix product of floats (mma)": rf"(?:\w*mma|tcgen05\.mma)\b.*(?:{_FLOAT}|kind::(?!i8).*)",
}
_OPCODE = re.compile(r"^\s*(?:@!?%p\d+ )?([a-z][\w.:]*)\s[^\n]*;", re.MULTILINE)
_SUM = re.compile(  # in Triton IR: a reduction that has a sum or a product in it, or a matrix product
    r'"tt\.(?:reduce|scan)"[^\n]*\(\{\n(?:(?!\s*\}\)).*\n)*?\s*%\S+ = arith\.(?:addf|subf|mulf|divf)\b'
    r"|= tt\.dot[^\n]*-> tensor<(?:\d+x)+(?:bf16|f\d+)"
)


def broken(kernel: Compiled) -> list[str]:
    """Return the rules that a kernel breaks, each with the instruction."""
    opcodes = list(dict.fromkeys(_OPCODE.findall(kernel.ptx)))
    found = [
        f"{rule}: {opcode}" for rule, pattern in RULES.items() for opcode in opcodes if re.fullmatch(pattern, opcode)
    ]
    found += ["a sum of floats over a block"] * bool(_SUM.search(kernel.ttir))
    return found + ["products and sums may be joined: launch it with enable_fp_fusion=False"] * kernel.fused
