"""What is asked of transformers about a folder besides its weights: the configuration and the tokenizer.

Only files on this machine are read, and no code that lies in the folder is run.
"""

from pathlib import Path
from typing import Any

from squeeze.errors import ModelError

__all__ = ["first_line", "load_config", "load_tokenizer", "quiet"]


def quiet() -> None:
    """Let transformers neither warn nor draw bars."""
    from transformers.utils import logging

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]


def load_config(folder: Path | str) -> Any:
    """The folder's configuration. Raises what transformers raises."""
    quiet()
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def load_tokenizer(folder: Path | str) -> Any:
    """The folder's tokenizer by transformers. Raises ModelError where it has none."""
    quiet()
    from transformers import AutoTokenizer

    missing = f"{folder}: has no tokenizer that transformers can load"
    if not Path(folder).is_dir():
        raise ModelError(f"{folder}: no such folder")
    if not any((Path(folder) / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        raise ModelError(missing)
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (ValueError, KeyError, OSError, RuntimeError, ImportError, TypeError) as error:
        raise ModelError(f"{missing}: {first_line(error)}") from error


def first_line(error: BaseException) -> str:
    """What an error of another library says, in one line."""
    return str(error).strip().partition("\n")[0] or type(error).__name__
