"""Models of diffusers: their classes and descriptions. pretrained.py gives them to callers like models of transformers.

Such a folder has a config.json with a `_class_name` of diffusers, and weights in diffusion_pytorch_model*.safetensors.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from squeeze.errors import FormatError, ModelError, printable

if TYPE_CHECKING:
    from torch import nn

__all__ = ["DiffusionConfig", "is_diffusion"]

_CLASS = "_class_name"
_MOST, _MOST_LAYERS, _MOST_SIDE = 1 << 24, 1 << 10, 1 << 10
_SIDES = (  # tables of their squares or products are computed
    *("sample_size", "pos_embed_max_size", "num_positions"),
    *("sample_height", "sample_width", "sample_frames", "video_length", "max_text_seq_length"),
)
_OURS = ("quantization_config", "compression_config")


def is_diffusion(config: Mapping[str, Any]) -> bool:
    """Return whether a config.json describes a model of diffusers."""
    return isinstance(config.get(_CLASS), str) and "model_type" not in config


@dataclass
class DiffusionConfig:
    """The description of a model of diffusers, with the attributes of a configuration of transformers that are read.

    Attributes:
        kind: class of the model.
        document: its config.json.
        name_or_path: folder of the model.
    """

    kind: Any
    document: dict[str, Any]
    name_or_path: str
    tie_word_embeddings: bool = False
    sub_configs: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: Path | str, document: dict[str, Any]) -> "DiffusionConfig":
        """Find the class of a model.

        Raises:
            FormatError: A number in the description is out of range.
            ModelError: diffusers is not installed, or has no such class.
        """
        name = document[_CLASS]
        if find_spec("diffusers") is None:
            raise ModelError(f"{folder}: is a model of diffusers, which is not installed: pip install diffusers")
        import diffusers  # it takes seconds to import

        diffusers.utils.logging.set_verbosity_error()
        diffusers.utils.logging.disable_progress_bar()
        kind = getattr(diffusers, name, None) if name.isidentifier() else None
        is_model = isinstance(kind, type) and issubclass(kind, diffusers.ModelMixin)
        if not is_model or not hasattr(kind, "from_config"):
            raise ModelError(f"{folder}: diffusers {diffusers.__version__} has no model {printable(repr(name))}")
        _check(folder, document)
        return cls(kind, document, str(folder))

    @property
    def architectures(self) -> list[str]:
        """The name of the class, in a list as in transformers."""
        return [self.kind.__name__]

    def new(self, buffers: bool = True) -> "nn.Module":
        """Return the model without memory for its weights, and without that for buffers unless `buffers` is False."""
        from accelerate import init_empty_weights

        described = {key: value for key, value in self.document.items() if key not in _OURS}
        with init_empty_weights(include_buffers=buffers):
            model: nn.Module = self.kind.from_config(described, trust_remote_code=False)
        return model


def _check(folder: Path | str, values: Any, key: str = _CLASS) -> None:
    """Raise FormatError if a number is so large that building the model would take all memory."""
    if isinstance(values, dict):
        for name, value in values.items():
            _check(folder, value, str(name))
    elif isinstance(values, list):
        for value in values:
            _check(folder, value, key)
    elif isinstance(values, int):
        most = _MOST_LAYERS if "layers" in key else _MOST_SIDE if key in _SIDES else _MOST
        if abs(values) > most:
            raise FormatError(f"{folder}: config.json: {printable(key)} must be at most {most}, got {values}")
