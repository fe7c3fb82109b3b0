"""Packed models in SGLang: the entry point `sglang.srt.plugins`, which adds `--load-format squeeze`.

SGLang's load formats are an enumeration, but a loader's class may stand in its place. Hooks put ours there, undo what
`pack` changed in config.json, and refuse a packed model that is loaded in another format. Weights are decoded as in
vLLM (server_loading.py).
"""

from __future__ import annotations

import logging
from functools import cache
from types import ModuleType
from typing import Any

from squeeze.errors import SqueezeError, printable

__all__ = ["loader", "register"]

_LOG = logging.getLogger("sglang.squeeze")
_FORMAT = "squeeze"
_MARK = "squeeze_packed"  # an attribute of the configuration of a packed folder
# Where hooks go: each must exist, or the plugin registers none.
_VERIFY = ("sglang.srt.configs.load_config", "LoadConfig._verify_load_format")
_CONFIG = ("sglang.srt.utils.hf_transformers.config", "get_config")
_LOADER = ("sglang.srt.model_loader.loader", "get_model_loader")


def register() -> None:
    """Register the load format with SGLang, once for each process; SGLang then applies the hooks.

    Another interface of SGLang is a warning of one line, since SGLang also runs models that are not packed.
    """
    try:
        from sglang.srt.arg_groups.choices import LOAD_FORMAT_CHOICES, add_load_format_choices
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType

        for module, name in (_VERIFY, _CONFIG, _LOADER):
            _check_exists(module, name)
        if _FORMAT in LOAD_FORMAT_CHOICES:
            return
        add_load_format_choices([_FORMAT])
        HookRegistry.register(".".join(_VERIFY), verify_load_format, HookType.AROUND)
        HookRegistry.register(".".join(_CONFIG), restored, HookType.AFTER)
        HookRegistry.register(".".join(_LOADER), checked_loader, HookType.AROUND)
    except (ImportError, AttributeError, TypeError, ValueError, SqueezeError) as error:
        _LOG.warning(
            "this SGLang has another interface than squeeze knows, so --load-format squeeze is missing: unpack packed "
            "models by `squeeze unpack` (%s)",
            printable(repr(error)),
        )


def _check_exists(module: str, name: str) -> None:
    """Raise ImportError or AttributeError if a hook would have no target."""
    from importlib import import_module
    from operator import attrgetter

    attrgetter(name)(import_module(module))


def verify_load_format(original: Any, config: Any) -> Any:
    """Put the loader's class in the place of the load format `squeeze`; other formats are checked by SGLang."""
    if config.load_format == _FORMAT:
        config.load_format = loader()
        return None
    return original(config)


def _loading() -> ModuleType:
    """Return what the servers' loaders share; it imports torch, which a plugin without a packed model must not."""
    from squeeze.integrations import server_loading

    return server_loading


def restored(config: Any, *arguments: Any, **options: Any) -> Any:
    """Undo what `pack` changed in a configuration, and mark it."""
    if _loading().restore_config(config):
        setattr(config, _MARK, True)
    return config


def checked_loader(original: Any, load_config: Any, model_config: Any = None) -> Any:
    """Return SGLang's loader of a format. Raises SqueezeError for a packed model in a format that misreads it."""
    is_packed = getattr(getattr(model_config, "hf_config", None), _MARK, False)
    is_ours = isinstance(load_config.load_format, type)
    if is_packed and not is_ours and str(getattr(load_config.load_format, "value", load_config.load_format)) != "dummy":
        raise SqueezeError(f"{printable(model_config.model_path)}: is packed by squeeze: add --load-format {_FORMAT}")
    return original(load_config, model_config)


@cache
def loader() -> type[Any]:
    """Return the loader, a class of SGLang's kind."""
    from sglang.srt.model_loader.loader import DefaultModelLoader

    made: type[Any] = _loading().loader_class(DefaultModelLoader, lambda loader, name: False, _processes)
    return made


def _processes() -> int:
    """Return how many processes of the tensor-parallel group share this machine's cores."""
    import torch

    return torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
