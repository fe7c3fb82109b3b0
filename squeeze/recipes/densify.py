"""`squeeze densify`: folders in stored forms, rewritten with dense weights that every loader reads.

It reads what squeeze prunes, factorises and quantises, differences from a base, LoRA adapters, and checkpoints of GPTQ
and compressed-tensors. Packed folders are unpacked first.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import torch
from torch import nn

from squeeze.checkpoint.checkpoint import Checkpoint, View
from squeeze.checkpoint.lora_folder import LoraFolder
from squeeze.checkpoint.other_files import copy_other_files, copy_tokenizer
from squeeze.checkpoint.parts import Parts
from squeeze.checkpoint.pretrained import dense_model, explained
from squeeze.checkpoint.renaming import model_modules, transposed
from squeeze.checkpoint.stored import expanded
from squeeze.checkpoint.weight_files import is_adapter, stem_of
from squeeze.engine.experts import Fused, Layout
from squeeze.engine.report import NAME as REPORT
from squeeze.errors import FormatError, SqueezeError, printable
from squeeze.integrations.forms import open_stored
from squeeze.integrations.opening import check_opens
from squeeze.packing import folder
from squeeze.packing.chain import packed_files
from squeeze.packing.unpack import unpack
from squeeze.prune.delta.base import BaseWeights
from squeeze.prune.delta.stored import DeltaForm
from squeeze.quant.sources import READERS, floats
from squeeze.system.limits import Limits
from squeeze.system.storage import local_path
from squeeze.system.work import scratch_folder

__all__ = ["densify"]

_CONFIGS = ("quantization_config", "compression_config", "sparsity_config")
Load = Callable[[], torch.Tensor]


def densify(
    source: Path | str,
    target: Path | str,
    overwrite: bool = False,
    base: Path | str | None = None,
    limits: Limits | None = None,
) -> int:
    """Write a folder with every weight dense, and return the bytes of its tensors.

    Args:
        source: A folder in a stored form, packed or not, or a LoRA adapter, which is merged with its base. The
            adapter's tokenizer and chat templates replace the base's, if it has any.
        target: Folder to write.
        overwrite: Whether to replace an existing folder.
        base: Base of a difference or adapter; by default it is searched next to the source.
        limits: Memory that unpacking and a dense weight may take.

    Raises:
        FormatError: If all weights are dense already, or the source is damaged.
        LimitError: If more memory is needed than allowed.
        SqueezeError: If the base is missing or wrong. Nothing is written after an error.
    """
    source, target = local_path(source), local_path(target)
    limits = limits or Limits()
    if is_adapter(source):
        return _merged(source, target, overwrite, base, limits)
    checkpoint = Checkpoint.open(source)
    folder.check_target(source, target, overwrite)
    with _prepared(checkpoint, target, base, limits) as (prepared, found):
        return _densified(source, prepared, target, overwrite, limits, found)


def _merged(source: Path, target: Path, overwrite: bool, base: Path | str | None, limits: Limits) -> int:
    """Write the base of an adapter with its products added, and return the bytes of the tensors."""
    with ExitStack() as stack:
        if (source / folder.MANIFEST).is_file():
            folder.check_target(source, target, overwrite)
            unpacked = stack.enter_context(scratch_folder(target)) / "unpacked"
            unpack(source, unpacked, limits=limits)
            adapter = LoraFolder.open(unpacked)
        else:
            adapter = LoraFolder.open(source)
        checkpoint = Checkpoint.open(_base_beside(source, adapter.base_name) if base is None else base)
        for path in (source, checkpoint.folder):
            folder.check_target(path, target, overwrite)
        if (checkpoint.folder / folder.MANIFEST).is_file():
            raise SqueezeError(f"{checkpoint.folder}: is packed: `squeeze unpack` it first")
        merged = adapter.merged(floats(checkpoint), dense_model(checkpoint.folder))
        return _densified(source, merged, target, overwrite, limits, None, tokenizer=adapter.folder)


def _base_beside(source: Path, name: str) -> Path:
    """Return the base of an adapter by its name, next to the adapter. Raises SqueezeError if it is not there."""
    beside = source.resolve().parent / name
    if not name or not beside.is_dir():
        which = f"its base, {printable(name)}, is not next to it" if name else "it does not name its base"
        raise SqueezeError(f"{source}: {which}: put it there, or name it with `base`")
    return beside


@contextmanager
def _prepared(
    checkpoint: Checkpoint, target: Path, base: Path | str | None, limits: Limits
) -> Iterator[tuple[Checkpoint, Path | str | None]]:
    """Open a checkpoint, unpacked next to `target` if it is packed, with the base of a difference."""
    source, described = checkpoint.folder, checkpoint.config.get("quantization_config") or {}
    is_delta = described.get("quant_method") == DeltaForm.method
    differs = any(packed.description.base for packed in packed_files(source, limits))
    if base is not None and not is_delta and not differs:
        raise SqueezeError(f"{source}: is no difference from a base, and needs none")
    if is_delta and base is None:
        base = BaseWeights.of(source, described).path
    with ExitStack() as stack:
        if (source / folder.MANIFEST).is_file():
            unpacked = stack.enter_context(scratch_folder(target)) / "unpacked"
            unpack(source, unpacked, base=base if differs else None, limits=limits)
            checkpoint = Checkpoint.open(unpacked)
        yield checkpoint, base if is_delta else None


def _densified(
    source: Path,
    checkpoint: Checkpoint,
    target: Path,
    overwrite: bool,
    limits: Limits,
    base: Path | str | None,
    tokenizer: Path | None = None,
) -> int:
    """Write the dense folder and return the bytes of its tensors.

    `source` is the folder that messages name, and `tokenizer` one whose tokenizer replaces the checkpoint's.
    """
    model = dense_model(checkpoint.folder)
    tensors = _tensors(checkpoint, source, model, limits, base)
    config = {key: value for key, value in checkpoint.config.items() if key not in _CONFIGS}
    with scratch_folder(target) as work:
        parts, content = Parts(work), work / folder.CONTENT
        content.mkdir()
        together = _together(model, tensors)
        for number, (names, fused) in enumerate(together):
            with explained(source):
                loaded = {name: tensors[name]() for name in names}
            if fused:
                fused.restore(loaded)
            parts.put(str(number), loaded)
        size = parts.join(map(str, range(len(together))), content, stem=stem_of(checkpoint.folder))
        copy_other_files(checkpoint.folder, content)
        if tokenizer:
            copy_tokenizer(tokenizer, content)
        (content / REPORT).unlink(missing_ok=True)
        (content / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        check_opens(content, checkpoint, target)
        folder.move_into_place(content, target, overwrite)
    return size


def _tensors(
    checkpoint: Checkpoint, source: Path, model: nn.Module, limits: Limits, base: Path | str | None
) -> dict[str, Load]:
    """Return a loader of each dense tensor; raises FormatError if all are dense, or their form is unknown."""
    if any(isinstance(file, View) for file in checkpoint.files.values()):
        return {name: partial(_loaded, checkpoint, name) for name in checkpoint.files}
    described = checkpoint.config.get("quantization_config")
    if isinstance(described, dict) and str(described.get("quant_method")) in READERS:
        checkpoint = floats(checkpoint)
        return {name: partial(_loaded, checkpoint, name) for name in checkpoint.files}
    if checkpoint.folder != source and not described:  # unpacked next to the target, in a folder that nobody knows
        raise FormatError(f"{source}: is packed, and its weights are dense: `squeeze unpack` it")
    with explained(source):
        stored = open_stored(checkpoint, base)
    turned, shapes = transposed(model, stored.modules), _shapes(model, stored.modules)
    replaced = {f"{module}.{leaf}" for module, leaves in stored.modules.items() for leaf in leaves}
    tensors: dict[str, Load] = {
        name: partial(_loaded, checkpoint, name) for name in checkpoint.files if name not in replaced
    }

    def weight(module: str) -> torch.Tensor:
        leaves = checkpoint.load((f"{module}.{leaf}" for leaf in stored.modules[module]), strict=False)
        found = stored.weight(module, leaves)
        if found.shape != (wanted := shapes.get(module, found.shape)):
            raise FormatError(f"{module}: a matrix {list(found.shape)} is stored, and the model has {list(wanted)}")
        dense = expanded(module, found, stored.dtype, limits)
        return dense.T if module in turned else dense

    return tensors | {f"{module}.weight": partial(weight, module) for module in stored.modules}


def _shapes(model: nn.Module, modules: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Return the shape (O, I) of the matrices that the model has, by the checkpoint's module name."""
    shapes: dict[str, tuple[int, ...]] = {}
    for path, module in model.named_modules():
        if layout := Layout.of(module):
            shapes |= layout.shapes(path, module)
    turned = transposed(model, modules)
    for source, name in model_modules(model, modules).items():
        shape = tuple(model.get_submodule(name).get_parameter("weight").shape)
        shapes[source] = tuple(reversed(shape)) if source in turned else shape
    return shapes


def _loaded(checkpoint: Checkpoint, name: str) -> torch.Tensor:
    return checkpoint.load([name], strict=False)[name]


def _together(model: nn.Module, names: Iterable[str]) -> list[tuple[list[str], Fused | None]]:
    """Return groups of tensor names that are written together: single tensors, and the experts that the model
    merges."""
    from squeeze.integrations.conversions import unmerged  # transformers takes seconds to import

    units: list[tuple[list[str], Fused | None]] = [(fused.all_names, fused) for fused in unmerged(model, names)]
    known = {name for unit, _ in units for name in unit}
    return [*units, *(([name], None) for name in names if name not in known)]
