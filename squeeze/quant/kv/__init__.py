"""Low-bit KV caches for transformers: `QuantizedKVCache(config, policy)`; one policy a file.

cache.py is the main path: layers (layer.py) keep sinks and recent tokens as they are and move each block once,
through the policy's coders, into a store.
"""

from squeeze.quant.kv.base import Coder, Part, Policy
from squeeze.quant.kv.cache import ATTENTION, QuantizedKVCache
from squeeze.quant.kv.full import FullPrecision
from squeeze.quant.kv.kivi import KIVI

__all__ = ["ATTENTION", "KIVI", "POLICIES", "Coder", "FullPrecision", "Part", "Policy", "QuantizedKVCache"]

POLICIES = {"full": FullPrecision, "kivi": KIVI}
