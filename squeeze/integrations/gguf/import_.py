"""Import of a GGUF file as a model folder: bf16 safetensors, config.json and tokenizer files, one tensor at a time."""

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import torch

from squeeze.checkpoint.parts import Parts
from squeeze.errors import ModelError
from squeeze.integrations.gguf import GgufModel, description, tokenizer_files
from squeeze.integrations.opening import check_opens
from squeeze.lm import models, sources
from squeeze.packing import folder
from squeeze.system.storage import local_path
from squeeze.system.work import scratch_folder

__all__ = ["import_gguf"]


def named(source: Path) -> Path:
    """Return the file that a user names: a path, or the name of the bundled model.

    Raises ModelError if the bundled model is not installed.
    """
    if str(source) != models.BUNDLED or source.exists():
        return source
    path = models.bundled_path()
    if path is None:
        raise ModelError(f"the language model {models.BUNDLED} is not installed: {models.HELP}")
    return path


def import_gguf(
    source: Path | str, target: Path | str, *, overwrite: bool = False, progress: Callable[[int], None] | None = None
) -> int:
    """Write the model of a GGUF file as a folder, and return the bytes of its weights.

    Args:
        source: The GGUF file.
        target: The folder.
        overwrite: Whether an existing folder is replaced.
        progress: Called with the bytes of each tensor.

    Raises:
        ModelError: If `source` is not a GGUF file of a known architecture, or `target` exists.
    """
    source, target = local_path(source), local_path(target)
    if source.is_dir():
        raise ModelError(f"{source}: is a folder; import takes a GGUF file")
    if target.is_file():
        raise ModelError(f"{target}: is a file; import writes a folder")
    if not overwrite and target.is_dir() and any(target.iterdir()):
        raise ModelError(f"{target} already exists; use `overwrite=True` to overwrite")
    model = GgufModel.open(source)
    with sources.damage_as_model_error(source):
        written = {"config.json": description(model), **tokenizer_files(model)}
    with scratch_folder(target) as work:
        content = work / folder.CONTENT
        content.mkdir()
        size = _write_weights(model, work, content, progress or (lambda count: None))
        for name, document in written.items():
            (content / name).write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", "utf-8")
        if find_spec("transformers"):
            check_opens(content, target=target)
        folder.move_into_place(content, target, overwrite)
    return size


def _write_weights(model: GgufModel, work: Path, target: Path, progress: Callable[[int], None]) -> int:
    parts, views = Parts(work), model.views()
    for name, view in views.items():
        weight = view.read(None).to(torch.bfloat16)
        parts.put(name, {name: weight})
        progress(weight.numel())
    return parts.join(views, target)
