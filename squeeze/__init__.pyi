"""The public names of squeeze, for type checkers. `help(squeeze)` describes them."""

from squeeze.codecs.stream.compressor import compress as compress, compress_stream as compress_stream
from squeeze.codecs.stream.decompressor import decompress as decompress, decompress_stream as decompress_stream
from squeeze.codecs.stream.dictionary import Dictionary as Dictionary
from squeeze.codecs.stream.opening import open as open
from squeeze.codecs.stream.training import train as train
from squeeze.errors import (
    DamagedError as DamagedError,
    DeviceError as DeviceError,
    DictionaryError as DictionaryError,
    FormatError as FormatError,
    LevelError as LevelError,
    LimitError as LimitError,
    ModelError as ModelError,
    OptionError as OptionError,
    PackageError as PackageError,
    PolicyError as PolicyError,
    QualityError as QualityError,
    SqueezeError as SqueezeError,
    StorageError as StorageError,
    TruncatedError as TruncatedError,
    VerifyError as VerifyError,
)
from squeeze.kv import QuantizedKVCache as QuantizedKVCache
from squeeze.packing.load import load as load
from squeeze.packing.pack import pack as pack
from squeeze.packing.safe_open import safe_open as safe_open
from squeeze.packing.unpack import unpack as unpack, verify as verify
from squeeze.prune.sparsegpt import SparseGPT as SparseGPT
from squeeze.quant.gptq import GPTQ as GPTQ
from squeeze.quant.rtn import RTN as RTN
from squeeze.recipes.delta import delta as delta
from squeeze.recipes.densify import densify as densify
from squeeze.recipes.experts import experts as experts
from squeeze.recipes.factorize import factorize as factorize
from squeeze.recipes.prune import prune as prune
from squeeze.recipes.quantize import quantize as quantize
from squeeze.recipes.recover import recover as recover
from squeeze.recipes.reports.explanation.explain import explain as explain
from squeeze.system.limits import Limits as Limits
from squeeze.version import __version__ as __version__
