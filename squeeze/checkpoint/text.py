"""Texts as tokens: files, local data sets, and the tokenizer of a model's folder."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from squeeze.checkpoint.pretrained import explained, load_tokenizer
from squeeze.errors import FormatError, SqueezeError, printable
from squeeze.system.documents import parse
from squeeze.system.limits import Limits
from squeeze.system.storage import local_path

__all__ = ["read_text", "read_tokens", "tokenize"]


def read_tokens(
    text: Path | str, folder: Path | str, load: Callable[[Path | str], Any] = load_tokenizer
) -> torch.Tensor:
    """Return the tokens of a UTF-8 text file, int64 [T], by the tokenizer that `load` returns for a model's folder."""
    try:
        content = Path(text).read_text("utf-8")
    except UnicodeDecodeError:
        raise SqueezeError(f"{text}: is not text in UTF-8") from None
    return tokenize(load(folder), content)


def tokenize(tokenizer: Any, text: str) -> torch.Tensor:
    """Return the tokens of a text, int64 [T], with those that the tokenizer adds. Raises ModelError if it fails."""
    with explained(getattr(tokenizer, "name_or_path", "") or "the tokenizer"):
        ids = tokenizer(text, return_tensors="pt", verbose=False)["input_ids"][0]
    tokens: torch.Tensor = ids.to(torch.int64)
    return tokens


def read_text(source: str | Path) -> str:
    """Return the text of a file or data set."""
    path = local_path(source)
    if not path.is_file():
        return _dataset(str(source))
    try:
        text = path.read_text("utf-8")
        if path.suffix == ".jsonl":
            return "\n\n".join(str(parse(line, Limits())["text"]) for line in text.split("\n") if line.strip())
    except UnicodeDecodeError:
        raise SqueezeError(f"{source}: is not text in UTF-8") from None
    except (FormatError, KeyError, TypeError):
        raise SqueezeError(
            f'{source}: a line is not a JSON object with a "text"; if it has "messages", give `chat`'
        ) from None
    return text


def _dataset(name: str) -> str:
    try:
        import datasets  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        raise SqueezeError(f"{name}: no such file (and the package datasets is not installed)") from None
    try:
        with _offline(datasets.config):
            rows = datasets.load_dataset(name, split="train", trust_remote_code=False)
        return "\n\n".join(str(text) for text in rows["text"])
    except Exception as error:  # whatever the package raises
        raise SqueezeError(f"{name}: no such file, and no data set on this machine: {printable(error)}") from error


@contextmanager
def _offline(config: Any) -> Iterator[None]:
    """Make the package datasets, whose config this is, work offline in the `with` block.

    Its own option for that would still ask for names.
    """
    from huggingface_hub import constants

    modules: list[Any] = [config, constants]
    before = [module.HF_HUB_OFFLINE for module in modules]
    try:
        for module in modules:
            module.HF_HUB_OFFLINE = True
        yield
    finally:
        for module, value in zip(modules, before, strict=True):
            module.HF_HUB_OFFLINE = value
