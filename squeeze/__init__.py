"""squeeze: compression with predictive models, for files and for model checkpoints.

Names are loaded on first use, so that `import squeeze` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from squeeze.codecs.compressor import compress, compress_stream, decompress, decompress_stream
    from squeeze.codecs.prior import Prior
    from squeeze.codecs.reader import open
    from squeeze.codecs.training import train
    from squeeze.errors import (
        DamagedError,
        FormatError,
        LevelError,
        ModelError,
        PolicyError,
        PriorError,
        QualityError,
        SqueezeError,
        TruncatedError,
        VerifyError,
    )
    from squeeze.factor.api import factorize
    from squeeze.model.densify import densify
    from squeeze.packing.load import load
    from squeeze.packing.pack import pack
    from squeeze.packing.unpack import unpack, verify
    from squeeze.prune.api import prune
    from squeeze.prune.sparsegpt import SparseGPT
    from squeeze.quant.api import quantize
    from squeeze.quant.gptq import GPTQ
    from squeeze.quant.kv import QuantizedKVCache
    from squeeze.quant.rtn import RTN

__version__ = "0.1.0"

_HOMES = {
    "compress": "squeeze.codecs.compressor",
    "decompress": "squeeze.codecs.compressor",
    "compress_stream": "squeeze.codecs.compressor",
    "decompress_stream": "squeeze.codecs.compressor",
    "open": "squeeze.codecs.reader",
    "load": "squeeze.packing.load",
    "pack": "squeeze.packing.pack",
    "unpack": "squeeze.packing.unpack",
    "verify": "squeeze.packing.unpack",
    "quantize": "squeeze.quant.api",
    "prune": "squeeze.prune.api",
    "SparseGPT": "squeeze.prune.sparsegpt",
    "factorize": "squeeze.factor.api",
    "densify": "squeeze.model.densify",
    "GPTQ": "squeeze.quant.gptq",
    "RTN": "squeeze.quant.rtn",
    "SqueezeError": "squeeze.errors",
    "FormatError": "squeeze.errors",
    "DamagedError": "squeeze.errors",
    "TruncatedError": "squeeze.errors",
    "LevelError": "squeeze.errors",
    "ModelError": "squeeze.errors",
    "PolicyError": "squeeze.errors",
    "PriorError": "squeeze.errors",
    "Prior": "squeeze.codecs.prior",
    "train": "squeeze.codecs.training",
    "QuantizedKVCache": "squeeze.quant.kv",
    "VerifyError": "squeeze.errors",
    "QualityError": "squeeze.errors",
}

__all__ = [
    "GPTQ",
    "RTN",
    "DamagedError",
    "FormatError",
    "LevelError",
    "ModelError",
    "PolicyError",
    "Prior",
    "PriorError",
    "QualityError",
    "QuantizedKVCache",
    "SparseGPT",
    "SqueezeError",
    "TruncatedError",
    "VerifyError",
    "compress",
    "compress_stream",
    "decompress",
    "decompress_stream",
    "densify",
    "factorize",
    "load",
    "open",
    "pack",
    "prune",
    "quantize",
    "train",
    "unpack",
    "verify",
]


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'squeeze' has no attribute {name!r}")
