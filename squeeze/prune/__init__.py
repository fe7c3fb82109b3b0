"""Sparse weights: which of a matrix's weights stay, what they become, and how little they can be stored in.

The package has the name of a function, so it can be called: `squeeze.prune(...)` is recipes/prune.py's.
"""

import sys
from types import ModuleType
from typing import Any


class _Package(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from squeeze.recipes.prune import prune

        return prune(*args, **kwargs)


sys.modules[__name__].__class__ = _Package
