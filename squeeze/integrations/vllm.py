"""Packed models in vLLM: the entry point `vllm.general_plugins`, which registers `--load-format squeeze`.

Weights are decoded to dense tensors while they are loaded, one after another, and vLLM runs them as it runs those of
the original folder. Each process of a tensor-parallel group decodes the tensors that its model asks for, from files
that all share in the page cache; experts of other processes are left out.

vLLM calls the entry point in each of its processes, also for models that are not packed. So an interface that changed
is a warning of one line, and never an error.
"""

from __future__ import annotations

import logging
from functools import cache, wraps
from types import ModuleType
from typing import Any

from squeeze.errors import SqueezeError, printable

__all__ = ["config_parser", "loader", "register"]

_LOG = logging.getLogger("vllm.squeeze")  # below vLLM's logger, whose handlers print it
_FORMAT = "squeeze"


def register() -> None:
    """Register the load format with vLLM, once for each process.

    The load format brings the configuration parser of the same name along, which undoes what `pack` changed in
    config.json.
    """
    try:
        _register_loader()
        _register_parser()
        _choose_parser()
    except (ImportError, AttributeError, TypeError, ValueError, SqueezeError) as error:
        _LOG.warning(
            "this vLLM has another interface than squeeze knows, so --load-format squeeze is missing: unpack packed "
            "models by `squeeze unpack` (%s)",
            printable(repr(error)),
        )


def _register_loader() -> None:
    from vllm.config.load import LoadConfig
    from vllm.model_executor.model_loader import get_model_loader, register_model_loader

    made = loader()
    try:
        known = isinstance(get_model_loader(LoadConfig(load_format=_FORMAT)), made)
    except ValueError:
        known = False
    if not known:
        register_model_loader(_FORMAT)(made)


def _register_parser() -> None:
    from vllm.transformers_utils.config import HFConfigParser, get_config_parser, register_config_parser

    made = config_parser(HFConfigParser)
    try:
        known = isinstance(get_config_parser(_FORMAT), made)
    except ValueError:
        known = False
    if not known:
        register_config_parser(_FORMAT)(made)


def _choose_parser() -> None:
    """Let the load format choose the configuration parser, unless the user chose one."""
    from vllm.engine.arg_utils import EngineArgs

    original = EngineArgs.create_model_config
    if getattr(original, "chooses_squeeze", False):
        return

    @wraps(original)
    def create_model_config(self: Any, *arguments: Any, **options: Any) -> Any:
        if self.load_format == _FORMAT and self.config_format == "auto":
            self.config_format = _FORMAT
        return original(self, *arguments, **options)

    create_model_config.chooses_squeeze = True  # type: ignore[attr-defined]
    EngineArgs.create_model_config = create_model_config


def _loading() -> ModuleType:
    """Return what the servers' loaders share; it imports torch, which a plugin without a packed model must not."""
    from squeeze.integrations import server_loading

    return server_loading


@cache
def loader() -> type[Any]:
    """Return the loader, a class of vLLM's kind."""
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

    made: type[Any] = _loading().loader_class(DefaultModelLoader, _skips, _processes)
    return made


def _skips(loader: Any, name: str) -> bool:
    """Return whether a tensor is an expert of another process, which vLLM decides before it loads."""
    if getattr(loader, "local_expert_ids", None) is None:
        return False
    from vllm.model_executor.model_loader.ep_weight_filter import should_skip_weight

    return bool(should_skip_weight(name, loader.local_expert_ids))


def _processes() -> int:
    """Return how many processes of the tensor-parallel group share this machine's cores."""
    from vllm.config import get_current_vllm_config_or_none

    config = get_current_vllm_config_or_none()
    return int(config.parallel_config.tensor_parallel_size) if config else 1


@cache
def config_parser(base: type[Any]) -> type[Any]:
    """Return the parser of config.json in packed folders. base: vLLM's HFConfigParser."""
    restore_config = _loading().restore_config

    class SqueezeConfigParser(base):  # type: ignore[misc]
        """A parser that returns the configuration of the original."""

        def parse(self, model: Any, trust_remote_code: bool, **options: Any) -> tuple[dict[str, Any], Any]:
            described, config = super().parse(model, trust_remote_code, **options)
            restore_config(described)
            restore_config(config)
            return described, config

    return SqueezeConfigParser
