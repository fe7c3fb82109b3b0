"""Stand-ins for the interfaces of vLLM and SGLang that the plugins use, for tests where neither is installed."""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any


@dataclass
class LoadConfig:
    """A configuration of loading, with the fields that a loader reads."""

    load_format: str = "auto"
    download_dir: str | None = None
    model_loader_extra_config: dict[str, Any] = field(default_factory=dict)
    ignore_patterns: list[str] = field(default_factory=lambda: ["original/**/*"])
    safetensors_load_strategy: str | None = None
    use_tqdm_on_load: bool = False


@dataclass
class ModelConfig:
    model: str
    revision: str | None = None
    quantization: str | None = None


class DefaultModelLoader:
    """A loader that passes the tensors of all sources to the model."""

    @dataclass
    class Source:
        model_or_path: str
        revision: str | None
        subfolder: str | None = None
        prefix: str = ""
        fall_back_to_pt: bool = True
        allow_patterns_overrides: list[str] | None = None
        is_unused_weight: Any = None

    counter_before_loading_weights = 0.0

    def __init__(self, load_config):
        if load_config.model_loader_extra_config:
            raise ValueError("unknown options")
        self.load_config, self.local_expert_ids = load_config, None

    def load_weights(self, model, model_config):
        first = self.Source(
            model_config.model,
            model_config.revision,
            allow_patterns_overrides=getattr(model, "allow_patterns_overrides", None),
            is_unused_weight=getattr(model, "is_unused_checkpoint_weight", None),
        )
        sources = [first, *getattr(model, "secondary_weights", ())]
        model.load_weights(pair for source in sources for pair in self._get_weights_iterator(source))


class HFConfigParser:
    """A parser of config.json, whose second result stands for a configuration of transformers."""

    def parse(self, model, trust_remote_code, revision=None, code_revision=None, **options):
        from squeeze.system.documents import read_object

        described = read_object(Path(model, "config.json"))
        config = type("Config", (), {})()
        vars(config).update(described)
        return described, config


class EngineArgs:
    """The arguments of the server that choose how a model is read."""

    def __init__(self, model, load_format="auto", config_format="auto"):
        self.model, self.load_format, self.config_format = model, load_format, config_format

    def create_model_config(self):
        from vllm.transformers_utils.config import get_config_parser

        return get_config_parser(self.config_format).parse(self.model, False)


def should_skip_weight(name, local):
    return ".experts." in name and int(name.split(".experts.")[1].split(".")[0]) not in local


def install_vllm(patch) -> dict[str, ModuleType]:
    """Make `import vllm` find the stand-ins."""
    loaders, parsers = {}, {"hf": HFConfigParser, "auto": HFConfigParser}

    def registering(table):
        return lambda name: lambda made: table.__setitem__(name, made)

    def get_model_loader(config):
        if config.load_format not in loaders:
            raise ValueError("no such format")
        return loaders[config.load_format](config)

    def get_config_parser(name):
        if name not in parsers:
            raise ValueError("no such parser")
        return parsers[name]()

    made_engine = type("EngineArgs", (EngineArgs,), {"create_model_config": EngineArgs.create_model_config})
    content = {
        "vllm": {},
        "vllm.config": {"get_current_vllm_config_or_none": lambda: None},
        "vllm.config.load": {"LoadConfig": LoadConfig},
        "vllm.engine": {},
        "vllm.engine.arg_utils": {"EngineArgs": made_engine},
        "vllm.model_executor": {},
        "vllm.model_executor.model_loader": {
            "get_model_loader": get_model_loader,
            "register_model_loader": registering(loaders),
        },
        "vllm.model_executor.model_loader.default_loader": {"DefaultModelLoader": DefaultModelLoader},
        "vllm.model_executor.model_loader.ep_weight_filter": {"should_skip_weight": should_skip_weight},
        "vllm.transformers_utils": {},
        "vllm.transformers_utils.config": {
            "HFConfigParser": HFConfigParser,
            "get_config_parser": get_config_parser,
            "register_config_parser": registering(parsers),
        },
    }
    return _installed(content, patch)


class SglangLoadConfig:
    """A configuration whose load format is checked when it is made."""

    def __init__(self, load_format="auto", model_loader_extra_config=None):
        self.load_format, self.model_loader_extra_config = load_format, model_loader_extra_config or {}
        self.download_dir, self.ignore_patterns, self.draft_model_idx = None, ["original/**/*"], None
        self._verify_load_format()

    def _verify_load_format(self):
        if isinstance(self.load_format, str) and self.load_format not in ("auto", "dummy"):
            raise ValueError("no such format")


class HookRegistry:
    """Hooks, applied to the functions that paths name."""

    hooks: list[tuple[str, Any, str]] = []  # noqa: RUF012

    @classmethod
    def register(cls, target, hook, hook_type):
        cls.hooks.append((target, hook, hook_type))

    @classmethod
    def apply_hooks(cls):
        for target, hook, kind in cls.hooks:
            place, _, name = target.rpartition(".")
            module = place if place in sys.modules else place.rpartition(".")[0]
            holder = sys.modules[module] if module == place else getattr(sys.modules[module], place.rpartition(".")[2])
            setattr(holder, name, _hooked(getattr(holder, name), hook, kind))


def _hooked(original, hook, kind):
    if kind == "around":
        return lambda *arguments, **options: hook(original, *arguments, **options)
    return lambda *arguments, **options: hook(original(*arguments, **options), *arguments, **options)


def install_sglang(patch) -> dict[str, ModuleType]:
    """Make `import sglang` find the stand-ins."""

    def get_model_loader(load_config, model_config=None):
        if isinstance(load_config.load_format, type):
            return load_config.load_format(load_config)
        return DefaultModelLoader(load_config)

    def get_config(model):
        return HFConfigParser().parse(model, False)[1]

    choices: list[str] = ["auto"]
    config_class = type(
        "LoadConfig", (SglangLoadConfig,), {"_verify_load_format": SglangLoadConfig._verify_load_format}
    )
    content = {
        **{"sglang": {}, "sglang.srt": {}, "sglang.srt.arg_groups": {}, "sglang.srt.configs": {}},
        **{"sglang.srt.plugins": {}, "sglang.srt.model_loader": {}, "sglang.srt.utils": {}},
        "sglang.srt.utils.hf_transformers": {},
        "sglang.srt.arg_groups.choices": {"LOAD_FORMAT_CHOICES": choices, "add_load_format_choices": choices.extend},
        "sglang.srt.plugins.hook_registry": {
            "HookRegistry": type("HookRegistry", (HookRegistry,), {"hooks": []}),
            "HookType": type("HookType", (), {"AROUND": "around", "AFTER": "after"}),
        },
        "sglang.srt.configs.load_config": {"LoadConfig": config_class},
        "sglang.srt.utils.hf_transformers.config": {"get_config": get_config},
        "sglang.srt.model_loader.loader": {
            "DefaultModelLoader": DefaultModelLoader,
            "get_model_loader": get_model_loader,
        },
    }
    return _installed(content, patch)


def _installed(content: dict[str, dict[str, Any]], patch) -> dict[str, ModuleType]:
    made = {}
    for name, members in content.items():
        made[name] = ModuleType(name)
        vars(made[name]).update(members)
        patch.setitem(sys.modules, name, made[name])
    return made
