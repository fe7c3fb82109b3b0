"""The storages that a pickle of torch.save names, and the names of their tensors."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

from squeeze.checkpoint.pickled import Name, Node, Persistent
from squeeze.checkpoint.safetensors import ELEMENT_BITS

__all__ = ["Storage", "can_run", "storages"]

_STORAGES = {
    **{"Float": "F32", "Double": "F64", "Half": "F16", "BFloat16": "BF16", "Long": "I64", "Int": "I32", "Short": "I16"},
    **{"Char": "I8", "Byte": "U8", "Bool": "BOOL", "ComplexFloat": "C64", "ComplexDouble": "F64"},
    **{"QInt8": "I8", "QUInt8": "U8", "QInt32": "I32"},
}
_DTYPES = {
    **{"float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0"},
    **{"float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2fnuz": "F8_E5M2FNUZ"},
    **{"uint16": "U16", "uint32": "U32", "uint64": "U64"},
}
_SIZES = {"ComplexDouble": 16}  # bytes of an element, if it is not that of the dtype
_UNTYPED = "torch.storage.UntypedStorage"
_REBUILD = "torch._utils._rebuild_"
_LONGEST = 1000  # letters of a name from which nothing is added, and most letters of a key
_MOST_ARGUMENTS = 16  # arguments of a tensor's constructor that are examined
_MOST_DIMENSIONS = 64  # torch's limit
# Names that only make data; any other may execute code when its file is loaded.
_DATA = {
    *("collections.OrderedDict", "collections.Counter", "collections.defaultdict", "_codecs.encode"),
    *("torch.Size", "torch.Tensor", "torch.device", "torch.nn.parameter.Parameter", "torch.serialization._get_layout"),
    *("numpy.dtype", "numpy.ndarray", *(f"numpy.{core}.multiarray.{name}" for core in ("core", "_core")
                                        for name in ("_reconstruct", "scalar"))),
    *(f"{module}.{name}" for module in ("builtins", "__builtin__")
      for name in ("set", "frozenset", "bytearray", "complex", "dict", "list", "tuple", "int", "float", "bool", "str")),
    *(f"torch.{kind}Storage" for kind in _STORAGES), _UNTYPED,
    *(f"torch.{kind}" for kind in ("float64", "float32", "float16", "bfloat16", "complex64", "complex128", "bool")),
    *(f"torch.{kind}" for kind in ("int8", "int16", "int32", "int64", "uint8", *_DTYPES)),
}  # fmt: skip


@dataclass(frozen=True)
class Storage:
    """A storage.

    Attributes:
        dtype: safetensors' name of its values' dtype.
        shape: of a tensor that covers it, or its number of values.
        size: bytes.
        name: path of its first tensor in the pickle, with dots between keys.
    """

    dtype: str
    shape: tuple[int, ...]
    size: int
    name: str


def can_run(names: set[str]) -> list[str]:
    """Return the names that do more than make data, sorted."""
    return sorted(name for name in names if name not in _DATA and not name.startswith(_REBUILD))


def storages(tree: Any) -> dict[str, Storage]:
    """Return the storages of a tree, by key."""
    known: dict[str, Storage] = {}
    for path, found, dtype, shape in _tensors(tree):
        key, storage = _storage(found.id, path, dtype, shape)
        if key is not None and storage is not None and (key not in known or known[key].dtype == "U8"):
            known[key] = storage
    return known


def _tensors(tree: Any) -> Iterator[tuple[str, Persistent, str | None, tuple[int, ...]]]:
    """Yield each storage with its path, and the dtype and shape of a tensor made of it; repeated containers are
    skipped."""
    stack: list[tuple[str, Any, Any]] = [("", "", tree)]
    seen: set[int] = set()
    while stack:
        above, name, value = stack.pop()
        if not isinstance(value, Persistent | Node | tuple):
            continue
        path = _below(above, name)
        if isinstance(value, Persistent):
            yield path, value, None, ()
            continue
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, tuple):
            stack.extend((path, key, item) for key, item in reversed(list(enumerate(value))))
            continue
        arguments = value.arguments
        if _is_tensor(value):
            words = (a.name for a in arguments[:_MOST_ARGUMENTS] if isinstance(a, Name))
            dtype = next((_DTYPES.get(word.removeprefix("torch.")) for word in words), None)
            yield path, arguments[0], dtype, arguments[2] if isinstance(arguments[2], tuple) else ()
            continue
        stack.extend((path, key, item) for key, item in reversed(value.items))
        if id(arguments) not in seen:
            seen.add(id(arguments))
            stack.extend((path, "", item) for item in reversed(arguments))


def _is_tensor(node: Node) -> bool:
    is_rebuilt = isinstance(node.function, Name) and node.function.name.startswith(_REBUILD)
    return is_rebuilt and len(node.arguments) > 2 and isinstance(node.arguments[0], Persistent)


def _below(path: str, key: Any) -> str:
    is_name = isinstance(key, str) or (isinstance(key, int) and abs(key) < 1 << 63)
    if not is_name or key == "" or len(path) > _LONGEST:
        return path
    word = f"{key}"[:_LONGEST]
    return f"{path}.{word}" if path else word


def _storage(id: Any, path: str, dtype: str | None, shape: tuple[Any, ...]) -> tuple[str | None, Storage | None]:
    """Return the key and the storage of a persistent id of torch: a word, its class, key, device and length."""
    if not isinstance(id, tuple) or len(id) < 5 or id[0] != "storage" or not isinstance(id[1], Name):
        return None, None
    _, kind, key, _, count = id[:5]
    if not isinstance(key, str) or type(count) is not int or not 0 <= count < 1 << 48:
        return None, None
    word = kind.name.removeprefix("torch.").removesuffix("Storage")
    if kind.name == _UNTYPED:
        size, dtype = count, dtype or "U8"
    elif word in _STORAGES:
        dtype = _STORAGES[word]
        size = count * _SIZES.get(word, ELEMENT_BITS[dtype] // 8)
    else:
        return None, None
    values = size * 8 // ELEMENT_BITS[dtype]
    is_shape = len(shape) <= _MOST_DIMENSIONS and all(type(n) is int and 0 < n <= values for n in shape)
    is_whole = is_shape and prod(shape) == values and word != "ComplexDouble"
    return key, Storage(dtype, tuple(shape) if is_whole and shape else (values,), size, path)
