"""Low-bit KV caches for transformers: `QuantizedKVCache(config, policy)`; one policy a file.

cache.py is the main path: layers (layer.py) keep sinks and a residual window as they are and move each block once,
through the policy's coders, into a store.
"""

from squeeze.kv.base import Coder, FullPrecision, HeadGroup, Policy
from squeeze.kv.blockfloat import BlockFloat
from squeeze.kv.cache import ATTENTION, QuantizedKVCache
from squeeze.kv.hybrid import Hybrid
from squeeze.kv.kivi import KIVI
from squeeze.kv.policies import POLICIES
from squeeze.kv.rotated import Rotated
from squeeze.kv.transform import Transform
from squeeze.kv.vidkv import VidKV

__all__ = [
    "ATTENTION",
    "KIVI",
    "POLICIES",
    "BlockFloat",
    "Coder",
    "FullPrecision",
    "HeadGroup",
    "Hybrid",
    "Policy",
    "QuantizedKVCache",
    "Rotated",
    "Transform",
    "VidKV",
]
