"""Files of byte code: of modules by this Python, and by hand as other versions write them."""

import importlib.util
import marshal
import struct
from pathlib import Path
from types import CodeType, ModuleType

__all__ = ["VERSIONS", "by_hand", "header", "of_module", "tables", "with_code"]

VERSIONS = {"3.7": 3394, "3.8": 3413, "3.10": 3439, "3.11": 3495, "3.13": 3571}  # with the number of each file
_REFERRED = 128  # flag of a type


def header(magic: int) -> bytes:
    """Return the header of a file."""
    return struct.pack("<H2sIII", magic, b"\r\n", 0, 1_700_000_000, 1234)


def of_module(module: ModuleType) -> bytes:
    """Return the file of a module that was loaded from its source."""
    return importlib.util.MAGIC_NUMBER + header(0)[4:] + marshal.dumps(_compiled(module))


def tables(module: ModuleType) -> list[bytes]:
    """Return the places in the source of all code objects of a module."""
    found = [_compiled(module)]
    for code in found:  # which grows
        found += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return [code.co_linetable for code in found]


def _compiled(module: ModuleType) -> CodeType:
    assert module.__file__
    code = compile(Path(module.__file__).read_bytes(), "/usr/lib/python3/" + module.__name__, "exec")
    assert isinstance(code, CodeType)
    return code


def by_hand(version: str) -> bytes:
    """Return a file with a function in a module, whose objects refer to each other."""
    magic = VERSIONS[version]
    inner = _code(magic, bytes([100, 1, 83, 0]) * 150, b"i\7\0\0\0", 12, b"z\x08function")
    return header(magic) + _code(magic, bytes([151, 0, 90, 2, 83, 0]) * 20, b")\2N" + inner, 1, b"z\x08<module>")


def with_code(code: bytes) -> bytes:
    """Return a file of Python 3.11 with a code object of some instructions."""
    return header(3495) + _code(3495, code, b"N", 1, b"z\4name")


def _code(magic: int, instructions: bytes, constants: bytes, line: int, name: bytes) -> bytes:
    """Return a code object with `constants` and `name` as written objects."""
    count = 6 if 3411 <= magic < 3450 else 5
    numbers = struct.pack(f"<{count}i", 1, *range(2, count), 67)
    names = b")\2" + bytes([b"Z"[0] | _REFERRED]) + b"\4self" + b"r\0\0\0\0"
    code = b"s" + struct.pack("<i", len(instructions)) + instructions
    if magic >= 3450:
        middle = constants + names + names + b"s\2\0\0\0  " + b"r\0\0\0\0" + name + name
        return b"c" + numbers + code + middle + struct.pack("<i", line) + b"s\4\0\0\0\x80\1\2\3" + b"s\0\0\0\0"
    middle = constants + names + names + b")\0" + b")\0" + b"u\6\0\0\0\xc3\xa9.pyt" + name
    return bytes([b"c"[0] | _REFERRED]) + numbers + code + middle + struct.pack("<i", line) + b"s\2\0\0\0\6\1"
