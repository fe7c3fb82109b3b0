"""How a tensor is coded: what codes it shortest at a level, written to memory or to a file."""

from math import prod
from typing import Any

from squeeze.checkpoint.safetensors import Bytes, Tensor
from squeeze.codecs.tensors import fixed, floats, floats_archive, ulps, zeros
from squeeze.codecs.tensors.content import Content, Difference
from squeeze.codecs.tensors.float_payload import DTYPES
from squeeze.codecs.tensors.float_plan import Plan
from squeeze.codecs.tensors.float_writer import Writer
from squeeze.codecs.tensors.small import SmallPlan, plan_of
from squeeze.packing import fields
from squeeze.packing.description import ARCHIVE, DELTA, FIXED, RANS, STORED, ULPS, ZEROS

__all__ = ["FLOATS", "coder", "write_tensor"]

FLOATS = ("F8_E4M3", "F8_E5M2", "F16", "BF16", "F32", "F64")  # of which zeros are tried
_LARGER = 1.03  # of what rANS takes: the most that a tensor's codes of fixed length may
_LEAST_ZEROS = 0.2  # share of the values from which on they are


def write_tensor(
    content: Content, tensor: Tensor, level: str, base: Content | None, threads: int, writer: Writer
) -> tuple[str, int]:
    """Write the payload of a tensor; its coding and size. What is to be stored is not written.

    A tensor that is in a file is read in parts, several times.
    """
    dtype, subject, prefix = tensor.layout, content, ""
    if level == "fast" and base is None and dtype in fixed.DTYPES:
        size = fixed.write(content, dtype, writer, threads)
        if size and _is_short(content, dtype, size):
            return FIXED, size
    if base is not None:
        difference = Difference.of(content, base)
        least, bits = floats.estimate(content, dtype), floats.estimate(difference, dtype)
        if level != "fast" and dtype in ulps.MANTISSAS:
            size = ulps.write(content, base, dtype, writer, threads)
            if size and 8 * size <= min(bits, least):
                return ULPS, size
        if bits < least:
            subject, prefix = difference, DELTA
    elif dtype in fields.DTYPES:
        kind, subject = fields.choose(content, dtype, tensor.shape)
        prefix, dtype = (f"{kind}+", "U8") if kind else ("", dtype)
    columns = prod(tensor.shape[1:]) if len(tensor.shape) > 1 else 0
    plan = plan_of(subject, dtype, threads) if level != "archive" else None
    coding = ARCHIVE if level == "archive" else RANS
    if base is None and dtype in FLOATS and (counts := _counts(content, dtype, plan, threads)) is not None:
        if level != "archive":
            columns = 0
        size = zeros.write(content, dtype, writer, coder(level).write, threads, columns, counts)
        if size and 8 * size < floats.estimate(content, dtype):
            return ZEROS + coding, size
    if level == "archive":
        size = floats_archive.write(subject, dtype, writer, threads, columns)
    else:
        size = plan.write(writer) if plan else 0
    return (prefix + coding, size) if 0 < size < subject.size else (STORED, content.size)


def _is_short(content: Content, dtype: str, size: int) -> bool:
    """Whether a payload of codes of fixed length is no more than a little larger than another one would be."""
    if dtype in ("BF16", "F16") and fixed.has_noise(content):
        return True
    return 8 * size <= _LARGER * floats.estimate(content, dtype)


def _counts(content: Content, dtype: str, plan: Plan | SmallPlan | None, threads: int) -> Bytes | None:
    """What `zeros.count` says, where as many values are 0 as zeros are tried of. A plan may know that fewer are."""
    if plan and 1 - (plan.count - plan.most_zeros) / plan.count < _LEAST_ZEROS:
        return None
    counts = zeros.count(content, dtype, threads)
    values = content.size // (DTYPES[dtype][0] // 8)
    return counts if values and 1 - counts.sum() / values >= _LEAST_ZEROS else None


def coder(level: str) -> Any:
    """The module that codes at a level."""
    return floats_archive if level == "archive" else floats
