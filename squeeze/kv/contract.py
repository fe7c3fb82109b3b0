"""What is taken from transformers' cache contract, and one clear error where its version has another."""

import transformers

from squeeze.errors import PolicyError

try:
    from transformers.cache_utils import (
        DYNAMIC_LAYER_TYPE_MAPPING,
        Cache,
        CacheLayerMixin,
        get_layer_types_and_kwargs,
    )
except ImportError:
    raise PolicyError(
        f"KV caches need a newer transformers than {transformers.__version__}: pip install --upgrade transformers"
    ) from None

__all__ = ["DYNAMIC_LAYER_TYPE_MAPPING", "Cache", "CacheLayerMixin", "get_layer_types_and_kwargs"]
