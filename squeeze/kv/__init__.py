"""Low-bit KV caches for transformers: `QuantizedKVCache(config, policy)`; one policy a file.

cache.py is the main path: layers (layer.py) keep sinks and recent tokens as they are and move each block once,
through the policy's coders, into a store.
"""

from typing import Any

from squeeze.kv.base import Coder, Part, Policy
from squeeze.kv.blockfloat import BlockFloat
from squeeze.kv.cache import ATTENTION, QuantizedKVCache
from squeeze.kv.full import FullPrecision
from squeeze.kv.kivi import KIVI
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
    "Part",
    "Policy",
    "QuantizedKVCache",
    "Rotated",
    "Transform",
    "VidKV",
]

# Policies that need no calibration, by the names that commands know them by.
POLICIES: dict[str, type[Any]] = {
    "full": FullPrecision,
    "kivi": KIVI,
    "rotated": Rotated,
    "vidkv": VidKV,
    "blockfloat": BlockFloat,
}
