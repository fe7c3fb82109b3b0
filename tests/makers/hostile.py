"""Make malicious model folders, and imitate a full disk."""

import json
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from tests.makers import tiny_models


def write_kind(folder: Path, kind: str, tokenizer: tokenizers.Tokenizer) -> Path:
    """Write a tiny folder of Llama, or of Qwen3, whose heads have norms."""
    values: dict[str, Any] = dict(tiny_models.tensors(tokenizer.get_vocab_size()))
    if kind == "qwen3":
        norms = (f"model.layers.{i}.self_attn.{part}_norm.weight" for i in range(tiny_models.LAYERS) for part in "qk")
        values |= {name: np.ones(tiny_models.HEAD_SIZE, np.float32) for name in norms}
    more: dict[str, Any] = {"head_dim": tiny_models.HEAD_SIZE} if kind == "qwen3" else {}
    return tiny_models.write_folder(folder, tokenizer, values, model_type=kind, vocab_size=400, **more)


def change_config(folder: Path, **entries: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))


def with_program(folder: Path, ran: Path, **entries: Any) -> None:
    """Add a program to a model's folder under every name from which transformers can load code. It writes the file
    `ran`."""
    (folder / "evil.py").write_text(f"open({str(ran)!r}, 'w').close()\nclass Evil: pass\nConfig = Tokenizer = Evil\n")
    named = {
        "AutoConfig": "evil.Config",
        "AutoModelForCausalLM": "evil.Evil",
        "AutoTokenizer": ["evil.Tokenizer", None],
    }
    change_config(folder, auto_map=named, **entries)
    settings = {"auto_map": {"AutoTokenizer": ["evil.Tokenizer", None]}, "tokenizer_class": "Tokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "custom_generate").mkdir(exist_ok=True)
    (folder / "custom_generate" / "generate.py").write_text(f"open({str(ran)!r}, 'w').close()\n")


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Make writing a file of more bytes fail, as on a full disk.

    Modules that are imported meanwhile keep no byte code: Python would leave it cut off, for all later processes.
    """
    before, writes_none = resource.getrlimit(resource.RLIMIT_FSIZE), sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        sys.dont_write_bytecode = writes_none
