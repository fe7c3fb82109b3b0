"""Imports from transformers' cache interface, with one clear error if its version is too old."""

from inspect import signature

import transformers
from transformers.masking_utils import create_causal_mask

from squeeze.errors import PolicyError

try:
    from transformers.cache_utils import (
        DYNAMIC_LAYER_TYPE_MAPPING,
        Cache,
        CacheLayerMixin,
        LinearAttentionLayer,
        get_layer_types_and_kwargs,
    )
except ImportError:
    raise PolicyError(
        f"KV caches need a newer transformers than {transformers.__version__}: pip install --upgrade transformers"
    ) from None

# The argument by which models take a cache, and by which they give it back: renamed in transformers 5.24.
CACHE = "cache" if "cache" in signature(create_causal_mask).parameters else "past_key_values"

__all__ = [
    "CACHE",
    "DYNAMIC_LAYER_TYPE_MAPPING",
    "Cache",
    "CacheLayerMixin",
    "LinearAttentionLayer",
    "get_layer_types_and_kwargs",
]
