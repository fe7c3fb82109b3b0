"""Compression with predictive models, for files and for model checkpoints.

Files: `compress` and `decompress` bytes, `compress_stream` and `decompress_stream` files, `open` for random access,
`train` a dictionary, `explain` what a file costs.

Checkpoints, lossless: `pack` and `unpack` a folder, `verify` it, `load` its tensors by name, `safe_open` single ones.

Checkpoints, smaller: `quantize`, `prune`, `factorize`, reduce the `experts` of a mixture, `recover` quality by
training, store a fine-tune as a `delta`, and `densify` back to plain weights. `GPTQ`, `RTN` and `SparseGPT` are methods
with options of their own.

KV caches: `QuantizedKVCache`.

Every error is a `SqueezeError` with one line that says what to do. `Limits` bound the memory and output of decoding.

    import squeeze

    data = squeeze.compress(b"text" * 1000, level=6)
    assert squeeze.decompress(data) == b"text" * 1000
    squeeze.pack("my-model", "my-model-packed")
    squeeze.quantize("my-model", bits=4, out="my-model-4bit")

Names are loaded on first use, so that `import squeeze` is fast. __init__.pyi declares them for type checkers.
"""

from importlib import import_module

from squeeze.version import __version__ as __version__

HOMES = {
    "DamagedError": "squeeze.errors",
    "DeviceError": "squeeze.errors",
    "Dictionary": "squeeze.codecs.stream.dictionary",
    "DictionaryError": "squeeze.errors",
    "FormatError": "squeeze.errors",
    "GPTQ": "squeeze.quant.gptq",
    "LevelError": "squeeze.errors",
    "LimitError": "squeeze.errors",
    "Limits": "squeeze.system.limits",
    "ModelError": "squeeze.errors",
    "OptionError": "squeeze.errors",
    "PackageError": "squeeze.errors",
    "PolicyError": "squeeze.errors",
    "QualityError": "squeeze.errors",
    "QuantizedKVCache": "squeeze.kv",
    "RTN": "squeeze.quant.rtn",
    "SparseGPT": "squeeze.prune.sparsegpt",
    "SqueezeError": "squeeze.errors",
    "StorageError": "squeeze.errors",
    "TruncatedError": "squeeze.errors",
    "VerifyError": "squeeze.errors",
    "compress": "squeeze.codecs.stream.compressor",
    "compress_stream": "squeeze.codecs.stream.compressor",
    "decompress": "squeeze.codecs.stream.decompressor",
    "decompress_stream": "squeeze.codecs.stream.decompressor",
    "delta": "squeeze.recipes.delta",
    "densify": "squeeze.recipes.densify",
    "experts": "squeeze.recipes.experts",
    "explain": "squeeze.recipes.reports.explanation.explain",
    "factorize": "squeeze.recipes.factorize",
    "load": "squeeze.packing.load",
    "open": "squeeze.codecs.stream.opening",
    "pack": "squeeze.packing.pack",
    "prune": "squeeze.recipes.prune",
    "quantize": "squeeze.recipes.quantize",
    "recover": "squeeze.recipes.recover",
    "safe_open": "squeeze.packing.safe_open",
    "train": "squeeze.codecs.stream.training",
    "unpack": "squeeze.packing.unpack",
    "verify": "squeeze.packing.unpack",
}

__all__ = list(HOMES)


def __dir__() -> list[str]:
    """Return all names, including those that are not loaded yet."""
    return sorted({*globals(), *HOMES})


def __getattr__(name: str) -> object:
    """Load a public name on first use. If its packages are not installed, return a placeholder that raises
    PackageError.
    """
    if name not in HOMES:
        raise AttributeError(f"module 'squeeze' has no attribute {name!r}")
    from squeeze.errors import PackageError
    from squeeze.system.extras import Missing, explained

    try:
        with explained():
            return getattr(import_module(HOMES[name]), name)
    except PackageError as error:
        return Missing(f"squeeze.{name}", str(error))
