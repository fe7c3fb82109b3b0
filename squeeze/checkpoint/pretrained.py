"""The only module that loads models with transformers or diffusers, and turns their errors into ModelError.

Only local safetensors and JSON are read, and no code of a model's folder is executed. A folder's description is checked
first; whatever transformers still raises becomes one line.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from squeeze.checkpoint.config_json import CONFIG, read_config
from squeeze.checkpoint.diffusion import DiffusionConfig, is_diffusion
from squeeze.checkpoint.weight_files import absent, is_repository, why_missing
from squeeze.errors import FormatError, ModelError, SqueezeError, printable
from squeeze.system.documents import read_object
from squeeze.system.storage import local_path

if TYPE_CHECKING:
    from torch import nn

    from squeeze.checkpoint.checkpoint import Checkpoint

__all__ = [
    "SAFE",
    "TOKENIZERS",
    "check_size",
    "class_of",
    "dense_model",
    "empty_model",
    "existing_folder",
    "explained",
    "has_tokenizer",
    "is_causal",
    "kind_of",
    "load_config",
    "load_tokenizer",
    "quiet",
]

SAFE = {"local_files_only": True, "trust_remote_code": False}
_OURS = (SqueezeError, MemoryError, KeyboardInterrupt, SystemExit, GeneratorExit, BrokenPipeError)
TOKENIZERS = (  # a tokenizer has one of these files, unless it reads bytes
    *("tokenizer.json", "vocab.json", "vocab.txt", "tokenizer.model", "spiece.model", "spm.model", "spm_char.model"),
    *("sentencepiece.model", "sentencepiece.bpe.model"),
)
_OF_BYTES = ("ByT5Tokenizer", "CanineTokenizer", "PerceiverTokenizer")  # classes that need no vocabulary
_MOST_GROWTH = 4096
_EXPANDED = 1024  # most weights per stored byte


def quiet() -> None:
    """Suppress transformers' warnings and progress bars."""
    from transformers.utils import logging

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]


@contextmanager
def explained(subject: object, *through: type[BaseException]) -> Iterator[None]:
    """Turn any exception of another library into a ModelError of one line that begins with `subject`.

    Exceptions in `through`, and our own, pass unchanged.
    """
    let_by: tuple[type[BaseException], ...] = (*_OURS, *through)
    try:
        yield
    except let_by:
        raise
    except BaseException as error:  # panics of compiled libraries are not Exceptions
        raise ModelError(f"{subject}: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    """Return the message of another library's error in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return printable(" ".join(lines[:2]) if lines and lines[0].endswith(":") else lines[0] if lines else repr(error))


def load_config(folder: Path | str) -> Any:
    """Return the folder's configuration from transformers, or the description of a model of diffusers.

    Raises FormatError if it is invalid, ModelError if neither supports it.
    """
    document = read_config(Path(folder))
    quiet()
    if is_diffusion(document):
        return DiffusionConfig.of(folder, document)
    from transformers import AutoConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kind = document.get("model_type")
    if kind is None or kind not in CONFIG_MAPPING:
        raise ModelError(f"{folder}: {_unknown(kind, document)}")
    with explained(folder):
        config = AutoConfig.from_pretrained(folder, **SAFE)
        config.return_dict = True  # callers of the model rely on it
    return config


def _unknown(kind: str | None, config: Mapping[str, Any]) -> str:
    problem = (
        "config.json names no model_type" if kind is None else f"the architecture {printable(repr(kind))} is unknown"
    )
    if config.get("auto_map"):
        return f"{problem} to transformers, and code that comes with a model is never run"
    return f"{problem}: only what transformers itself has code for can be run"


def empty_model(config: Any) -> "nn.Module":
    """Return the model of a configuration, without memory for its weights.

    Raises ModelError if no class of transformers runs it.
    """
    import torch

    if isinstance(config, DiffusionConfig):
        with explained(config.name_or_path):
            return config.new()
    kind = class_of(config)
    with torch.device("meta"):
        model: nn.Module = kind._from_config(config)
    return model


def kind_of(config: Any) -> str:
    """Return the class name of the model that a configuration describes."""
    named = getattr(config, "architectures", None)
    return printable(named[0]) if isinstance(named, list) and named else type(config).__name__


def class_of(config: Any) -> Any:
    """Return the class that runs a configuration's model, of diffusers or of transformers.

    It is the causal language model if the configuration describes a decoder that generates text, and otherwise the
    class that `architectures` names.

    Raises:
        ModelError: transformers has no such class, or `architectures` names none.
    """
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    if isinstance(config, DiffusionConfig):
        return config.kind
    named = _named_class(config)
    decoder = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING and not _encodes(config)
    if decoder and (named is None or named.can_generate()):
        kind = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
        return kind[0] if isinstance(kind, tuple) else kind
    if named is None:
        raise ModelError(
            f"{config.name_or_path or CONFIG}: `architectures` names no class of transformers for {kind_of(config)}: "
            "name the one that its weights belong to"
        )
    return named


def is_causal(config: Any) -> bool:
    """Return whether a configuration's model is run as a causal language model."""
    from transformers import PretrainedConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    if not isinstance(config, PretrainedConfig):  # of diffusers
        return False
    named = _named_class(config)
    decoder = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING and not _encodes(config)
    return decoder and (named is None or named.can_generate())


def _encodes(config: Any) -> bool:
    """Return whether a configuration describes an encoder, or an encoder and a decoder.

    Configurations of some decoders, such as GPT-NeoX, have an unused `is_decoder` that is False.
    """
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING

    encodes = getattr(config, "is_decoder", None) is False and type(config) in MODEL_FOR_MASKED_LM_MAPPING
    return encodes or bool(getattr(config, "is_encoder_decoder", False))


def dense_model(folder: Path | str) -> "nn.Module":
    """Return the dense model of a folder, quantised or not, without memory for its weights.

    Its class is the one that `architectures` names in config.json, or else the causal language model.
    """
    import torch

    config = load_config(folder)
    if isinstance(config, DiffusionConfig):
        return empty_model(config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    with explained(folder):
        kind = _named_class(config)
        if kind is None:
            return empty_model(config)
        with torch.device("meta"):
            model: nn.Module = kind._from_config(config)
    return model


def _named_class(config: Any) -> Any:
    """Return the class of transformers that the configuration names, if it fits the configuration; else None."""
    import transformers

    name = next(iter(config.architectures or []), None)
    kind = getattr(transformers, name, None) if isinstance(name, str) and name.isidentifier() else None
    if not isinstance(kind, type) or not issubclass(kind, transformers.PreTrainedModel):
        return None
    return kind if kind.config_class is type(config) else None


def check_size(model: "nn.Module", checkpoint: "Checkpoint", besides: int = 0) -> None:
    """Raise FormatError if a described model has more weights than its files can hold. Only headers are read.

    `besides` are weights stored elsewhere.
    """
    tied = set(getattr(model, "all_tied_weights_keys", None) or {})
    claimed = sum(value.numel() for name, value in model.named_parameters() if name not in tied)
    claimed_besides = sum(value.numel() for value in model.buffers())
    infos = [checkpoint.info(name) for name in checkpoint.files]
    stored = sum(prod(info.shape) for info in infos)
    if checkpoint.config.get("quantization_config"):
        stored = _EXPANDED * sum(info.size for info in infos) + besides
    if claimed > stored or claimed_besides > _EXPANDED * stored:
        raise FormatError(
            f"{checkpoint.folder / CONFIG}: describes a model of {claimed + claimed_besides} weights, "
            f"and the files hold {stored}"
        )


def existing_folder(path: Path | str) -> Path:
    """Return the folder of a model. Raises ModelError if it does not exist."""
    folder = local_path(path)
    if folder.is_file():
        raise ModelError(f"{folder}: is a file, not a model's folder: `squeeze import` makes one of a GGUF file")
    if not folder.is_dir():
        raise ModelError(f"{folder}: {absent(folder)}")
    if is_repository(folder):
        raise ModelError(f"{folder}: not a model's folder: {why_missing(folder, CONFIG)}")
    return folder


def has_tokenizer(folder: Path) -> bool:
    """Return whether a folder has a vocabulary, or names a tokenizer that needs none.

    Without a vocabulary transformers makes an empty tokenizer of some classes.
    """
    if any((folder / name).is_file() for name in TOKENIZERS):
        return True
    described = folder / "tokenizer_config.json"
    return described.is_file() and read_object(described).get("tokenizer_class") in _OF_BYTES


def load_tokenizer(folder: Path | str) -> Any:
    """Return the folder's tokenizer from transformers. Raises ModelError if it has none."""
    folder = existing_folder(folder)
    if not has_tokenizer(folder):
        raise ModelError(f"{folder}: has no tokenizer that transformers can load")
    if (folder / CONFIG).is_file():
        read_config(folder)
    if (folder / "tokenizer.json").is_file():
        _check_growth(folder / "tokenizer.json")
    quiet()
    from transformers import AutoTokenizer

    reason = f"{folder}: has no tokenizer that transformers can load"
    try:
        with explained(reason):
            return AutoTokenizer.from_pretrained(folder, **SAFE)
    except ModelError as error:
        pieces = next((name for name in TOKENIZERS if name.endswith(".model") and (folder / name).is_file()), None)
        if pieces is None or (folder / "tokenizer.json").is_file() or find_spec("sentencepiece"):
            raise
        raise ModelError(f"{reason} without sentencepiece, for its {pieces}: pip install sentencepiece") from error


def _check_growth(path: Path) -> None:
    """Raise FormatError if a tokenizer's chained replacements would make texts very much longer."""
    tokenizer = read_object(path)
    for stage in ("normalizer", "decoder"):
        growth, waiting = 1, [tokenizer.get(stage)]
        while waiting:
            step = waiting.pop()
            if isinstance(step, dict):
                waiting += step.values()
                content = step.get("content") if step.get("type") == "Replace" else None
                growth *= max(len(content), 1) if isinstance(content, str) else 1
            elif isinstance(step, list):
                waiting += step
        if growth > _MOST_GROWTH:
            raise FormatError(f"{path}: its {stage} makes texts more than {_MOST_GROWTH} times as long")
