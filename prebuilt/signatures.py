"""Signatures of entry points: a hash of the types of arguments, which call.c computes in the same way."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numba import types
from numba.np.numpy_support import as_dtype, from_dtype

from squeeze.numerics.int8 import ACTIVATION

__all__ = ["notes", "of_this_target", "result", "signature_hash"]

# The arrays whose dtype is int8.ACTIVATION, which depends on the processor: fields of named tuples, and an argument.
OPERANDS = {
    "Scratch": ("activations",),
    "Work": ("narrow", "attended_quantised", "wide", "thread_queries", "thread_weights"),
    "squeeze.lm.forward:cumulate": (2,),
}

_START, _PRIME, _WORD = 0xCBF29CE484222325, 0x100000001B3, (1 << 64) - 1


def signature_hash(kinds: Iterable[Any]) -> int:
    """Return the FNV-1a hash of what `notes` yields for a signature, a tuple of numba's types."""
    value = _START
    for note in notes(kinds):
        value = (value ^ note) * _PRIME & _WORD
    return value


def of_this_target(name: str, signature: Sequence[Any]) -> tuple[Any, ...]:
    """Return the signature of a kernel on the processor that this process compiles for, from one of any processor."""
    own = OPERANDS.get(name, ())
    return tuple(_operand(kind) if i in own else _of_this_target(kind) for i, kind in enumerate(signature))


def _of_this_target(kind: Any) -> Any:
    if not isinstance(kind, types.BaseTuple):
        return kind
    if not isinstance(kind, types.BaseNamedTuple):
        return types.BaseTuple.from_types([_of_this_target(item) for item in kind])
    own = OPERANDS.get(kind.instance_class.__name__, ())
    fields = zip(kind.fields, kind, strict=True)
    items = [_operand(item) if field in own else _of_this_target(item) for field, item in fields]
    return types.BaseTuple.from_types(items, kind.instance_class)


def _operand(kind: Any) -> Any:
    return kind.copy(dtype=from_dtype(np.dtype(ACTIVATION)))


def notes(kinds: Iterable[Any]) -> Iterator[int]:
    """Yield what is hashed of a tuple of numba's types: letters, sizes and numbers of dimensions."""
    yield ord("(")
    for kind in kinds:
        yield from _notes(kind)
    yield ord(")")


def _notes(kind: Any) -> Iterator[int]:
    if isinstance(kind, types.BaseTuple):
        yield from notes(kind)
    elif isinstance(kind, types.Array):
        dtype = as_dtype(kind.dtype)
        order = ">" if dtype.byteorder == ">" else "<"
        yield from (ord("A"), ord(dtype.kind), dtype.itemsize, ord(order), kind.ndim, ord(kind.layout), kind.aligned)
    elif isinstance(kind, types.NoneType):
        yield ord("n")
    elif isinstance(kind, types.Record):
        yield from (ord("R"), kind.size)
    else:
        yield from map(ord, _letter(kind))
        yield 1 if isinstance(kind, types.Boolean) else kind.bitwidth // 8


def _letter(kind: Any) -> str:
    if isinstance(kind, types.Boolean):
        return "b"
    if isinstance(kind, types.Integer):
        return "i" if kind.signed else "u"
    if isinstance(kind, types.Float):
        return "f"
    raise TypeError(f"a value of {kind} cannot be passed to compiled code")


def result(kind: Any) -> str:
    """Return the kind of a result: a letter, or ( and the number of items, and their kinds."""
    if isinstance(kind, types.NoneType):
        return "n"
    if isinstance(kind, types.BaseTuple) and not isinstance(kind, types.BaseNamedTuple):
        return f"({len(kind)}" + "".join(map(result, kind))
    return _letter(kind)
