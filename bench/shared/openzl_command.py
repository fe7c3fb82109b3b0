"""Run OpenZL as a command, which its package lacks: `python openzl_command.py c|d FILE` writes to standard output.

It compresses bytes at level 19. OpenZL could do better with a description of the data's format.
"""

import importlib.util
import sys
from pathlib import Path


def is_installed() -> bool:
    return importlib.util.find_spec("openzl") is not None


def compress(data: bytes) -> bytes:
    from openzl import ext

    compressor = ext.Compressor()
    compressor.set_parameter(ext.CParam.FormatVersion, ext.MAX_FORMAT_VERSION)
    compressor.set_parameter(ext.CParam.CompressionLevel, 19)
    compressor.select_starting_graph(ext.graphs.Compress()(compressor))
    context = ext.CCtx()
    context.ref_compressor(compressor)
    coded: bytes = context.compress([ext.Input(ext.Type.Serial, data)])
    return coded


def decompress(coded: bytes) -> bytes:
    from openzl import ext

    data: bytes = ext.DCtx().decompress(coded)[0].content.as_bytes()
    return data


if __name__ == "__main__":
    way, name = sys.argv[1:]
    sys.stdout.buffer.write({"c": compress, "d": decompress}[way](Path(name).read_bytes()))
