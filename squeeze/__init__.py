"""squeeze: compression with predictive models, for files and for model checkpoints.

Names are loaded on first use, so that `import squeeze` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from squeeze.codecs.stream.compressor import compress, compress_stream
    from squeeze.codecs.stream.decompressor import decompress, decompress_stream
    from squeeze.codecs.stream.dictionary import Dictionary, Prior
    from squeeze.codecs.stream.reader import open
    from squeeze.codecs.stream.training import train
    from squeeze.errors import (
        DamagedError,
        DictionaryError,
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
    from squeeze.kv import QuantizedKVCache
    from squeeze.packing.load import load
    from squeeze.packing.pack import pack
    from squeeze.packing.unpack import unpack, verify
    from squeeze.prune.sparsegpt import SparseGPT
    from squeeze.quant.gptq import GPTQ
    from squeeze.quant.rtn import RTN
    from squeeze.recipes.densify import densify
    from squeeze.recipes.factorize import factorize
    from squeeze.recipes.prune import prune
    from squeeze.recipes.quantize import quantize

__version__ = "0.1.0"

_HOMES = {
    "compress": "squeeze.codecs.stream.compressor",
    "decompress": "squeeze.codecs.stream.decompressor",
    "compress_stream": "squeeze.codecs.stream.compressor",
    "decompress_stream": "squeeze.codecs.stream.decompressor",
    "open": "squeeze.codecs.stream.reader",
    "load": "squeeze.packing.load",
    "pack": "squeeze.packing.pack",
    "unpack": "squeeze.packing.unpack",
    "verify": "squeeze.packing.unpack",
    "quantize": "squeeze.recipes.quantize",
    "prune": "squeeze.recipes.prune",
    "SparseGPT": "squeeze.prune.sparsegpt",
    "factorize": "squeeze.recipes.factorize",
    "densify": "squeeze.recipes.densify",
    "GPTQ": "squeeze.quant.gptq",
    "RTN": "squeeze.quant.rtn",
    "SqueezeError": "squeeze.errors",
    "FormatError": "squeeze.errors",
    "DamagedError": "squeeze.errors",
    "TruncatedError": "squeeze.errors",
    "LevelError": "squeeze.errors",
    "ModelError": "squeeze.errors",
    "PolicyError": "squeeze.errors",
    "DictionaryError": "squeeze.errors",
    "PriorError": "squeeze.errors",
    "Dictionary": "squeeze.codecs.stream.dictionary",
    "Prior": "squeeze.codecs.stream.dictionary",
    "train": "squeeze.codecs.stream.training",
    "QuantizedKVCache": "squeeze.kv",
    "VerifyError": "squeeze.errors",
    "QualityError": "squeeze.errors",
}

__all__ = [
    "GPTQ",
    "RTN",
    "DamagedError",
    "Dictionary",
    "DictionaryError",
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
