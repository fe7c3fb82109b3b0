"""Sparse weights: pruning masks, the values of the kept weights, and how little they can be stored in.

The package has the name of a function of the API, so it can be called: `squeeze.prune(...)` is that of
recipes/prune.py.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _Package(ModuleType):
    def __call__(self, *args: Any, **options: Any) -> Any:
        return import_module("squeeze.recipes.prune").prune(*args, **options)


sys.modules[__name__].__class__ = _Package
