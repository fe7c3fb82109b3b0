"""Packed weights in a model: tensors are loaded as payloads, and decoded once after loading or at each use.

Large weights of linear layers, embeddings and experts stay coded, except those that may be resident. All are compared
with their checksums. transformers.py and loading.py connect this to transformers.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from transformers.core_model_loading import WeightConverter, WeightTransform

from squeeze.checkpoint import safetensors as tensorfile
from squeeze.checkpoint.safetensors import Bytes, named
from squeeze.errors import FormatError, SqueezeError, escaped
from squeeze.integrations.coded_layers import Buffers, CodedBlock, CodedEmbedding, CodedLinear, ResidentLinear
from squeeze.integrations.conversions import Destination, FromPayloads, destinations
from squeeze.integrations.experts import experts_of, let_decode
from squeeze.integrations.load_options import LoadOptions
from squeeze.integrations.places import PackedTensor, Place, compare_coded, decoded, merged
from squeeze.packing import container
from squeeze.packing.base import Base
from squeeze.packing.chain import checkpoint_of
from squeeze.packing.container import PackedFile
from squeeze.packing.others import Others
from squeeze.packing.record import Record
from squeeze.packing.weights import torch_shape
from squeeze.system.limits import Limits
from squeeze.system.machine import MappedFiles, trim_memory

__all__ = ["Payloads", "base_of", "is_packed", "memory_of"]

_BLOCK_SHARE = 8  # a block of more than this part of the model is decoded layer by layer
_LEAST_PIECE = 1 << 20  # bytes
_LINEAR, _EXPERTS, _EMBEDDING, _NEVER = range(4)  # as what a tensor stays coded, that first which is used most


def is_packed(files: list[str]) -> bool:
    """Return whether the files of a checkpoint are packed; raises FormatError if only some are."""
    packed = [container.is_packed(tensorfile.read(Path(name))) for name in files]
    if any(packed) and not all(packed):
        raise FormatError(f"{files[packed.index(False)]}: is not packed, and others of the checkpoint are")
    return any(packed)


class Payloads:
    """The payloads of packed files while a model is loaded."""

    def __init__(self, files: list[str], options: LoadOptions, base: Base | None = None) -> None:
        """Read the headers of packed files.

        Differences from a base are decoded once, and so are tensors of level archive.

        Args:
            files: All files of the checkpoint.
            options: Options of loading.
            base: An open base; by default the one in the options, or one next to the folder.

        Raises:
            FormatError: If the files are not packed.
            SqueezeError: If the base is missing, wrong or not needed.
        """
        self.stored = _stored(files, base or options.base)
        self.share, self.resident, self.product = options.large_share, options.resident, options.product
        self.check = options.check
        self.places: dict[str, Place] = {}
        self._converted: dict[str, tuple[Destination, torch.dtype]] = {}
        self._error: SqueezeError | None = None

    def take(self, tensors: Mapping[str, tuple[Record, Bytes]]) -> None:
        """Take the stored bytes of tensors that have no payload of their own in the files."""
        for name, (record, data) in tensors.items():
            self.stored[name] = PackedTensor(name, record, data.size, None)

    def fill(self, model: nn.Module, tensors: Mapping[str, tuple[Record, Bytes]]) -> None:
        """Put the bytes of these tensors into a loaded model, on the device of the others."""
        devices = [tensor.device for tensor in model.parameters() if tensor.device.type != "meta"]
        for name in tensors.keys() & self.places.keys():
            data = torch.from_numpy(tensors[name][1])
            _put([_owner(model, name)], data.to(devices[0]) if devices else data)

    def place(
        self, model: nn.Module, conversions: Sequence[WeightTransform], plan: Mapping[str, torch.dtype] | None = None
    ) -> None:
        """Replace each tensor of a model by an empty payload, and make transformers' conversions take payloads.

        Args:
            model: The model, on the meta device.
            conversions: Its conversions, which are changed.
            plan: Dtypes by name pattern with * as wildcard, the first match counts; by default transformers' own.

        Raises:
            FormatError: If shapes differ.
        """
        loaded: Any = model
        plan = loaded._get_dtype_plan(loaded.config.dtype) if plan is None else plan
        tensors = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers())
        found = destinations(model, self.stored, conversions)
        for name, destination in found.items():
            if (tensor := tensors.get(name)) is not None:
                kinds = (plan[part] for part in plan if re.search(part.replace("*", ".*"), name))
                dtype = next(kinds, tensor.dtype) if tensor.is_floating_point() else tensor.dtype
                if destination.converter:
                    self._converted[name] = destination, dtype
                if place := self._place_for(destination, tensor, dtype):
                    self.places[name] = place
                    _put([_owner(model, name)], torch.empty(place.size, dtype=torch.uint8, device="meta"))
        for step in conversions:
            if isinstance(step, WeightConverter):
                step.operations = [FromPayloads(self, step.operations)]
        _mark_initialised(model, set(found))

    def _place_for(self, destination: Destination, tensor: torch.Tensor, dtype: torch.dtype) -> Place | None:
        """Return the Place of a tensor, or None if a conversion computes it from decoded tensors."""
        shape, first = tuple(tensor.shape), self.stored[destination.names[0]]
        if destination.converter is None:
            if torch_shape(first.record) != shape:
                raise FormatError(
                    f"{named(first.name)} has shape {torch_shape(first.record)}, but the model needs {shape}"
                )
            return Place((first,), 0, shape, dtype)
        if experts := destination.experts():
            return merged([[self.stored[name] for name in names] for names in experts], shape, dtype)
        steps = destination.steps_per_expert(first.record.shape, shape)
        place = None if steps is None else Place((first,), 0, shape, dtype, tuple(steps))
        return place if place and place.can_stay else None

    def converted(self, target: str, payloads: dict[str, list[torch.Tensor]]) -> torch.Tensor | None:
        """Return the joined payloads of experts that stay coded, else decode `payloads` in place and return None.

        `payloads` are by pattern of the converter.
        """
        destination, dtype = self._converted[target]
        if target in self.places:
            experts = zip(*(payloads[pattern] for pattern in destination.patterns), strict=True)
            return self.places[target].joined([payload for expert in experts for payload in expert])
        for pattern, found in payloads.items():
            for k, name in enumerate(destination.sources[pattern]):
                values = decoded(self.stored[name], found[k], self.check)
                found[k] = values.to(dtype) if destination.casts and values.is_floating_point() else values
        return None

    def fail(self, error: SqueezeError) -> None:
        """Keep an error of a conversion until the model is loaded, since transformers would replace its text."""
        self._error = self._error or error

    def settle(self, model: nn.Module) -> None:
        """Decode what was loaded, except what stays coded, and check all of it.

        Raises DamagedError on a checksum mismatch, and errors of conversions.
        """
        if self._error:
            raise self._error
        buffers = Buffers(self.product == "fused")
        total = sum(one.record.size for one in self.stored.values())
        piece = max(total // self.share, _LEAST_PIECE) if self.share else total + 1
        free, waiting = self.resident, deque(sorted(self._users(model), key=_order))
        merging = any(place.experts for place in self.places.values())
        coded: list[tuple[str, Record, torch.Tensor]] = []
        mapped = MappedFiles()
        while waiting:  # what was decoded is let go of
            payload, place, users = waiting.popleft()
            data = payload.data[: place.size]  # transformers pads biases of tied layers
            if merging and not place.experts:
                data = data.clone()  # else it holds the whole file, of which the experts are copies
            runs_here = data.device.type == "cpu" or not place.needs_processor
            stays = runs_here and place.can_stay and None not in (_kind(module, leaf, place) for module, leaf in users)
            if stays and place.nbytes > free:
                coded += [(one.name, one.record, part) for one, part in place.split(data)]
                _put(users, data)
                _let_decode(users, place, buffers, piece)
                continue
            _put(users, place.decoded(data, self.check))
            if stays:
                free -= place.nbytes
                _let_multiply(users)
            if place.is_coded and data.device.type == "cpu":
                mapped.release(data.data_ptr(), data.nbytes)
        if self.check:
            compare_coded(coded, torch.get_num_threads())
            trim_memory()  # what its threads had
        _gather_blocks(model, buffers, total // _BLOCK_SHARE if self.share else total)
        model.squeeze_buffers = buffers  # type: ignore[assignment]

    def _users(self, model: nn.Module) -> list[_Loaded]:
        """Return each payload with its Place and the modules that hold it, in the order of the model."""
        places = {id(_held(*_owner(model, name))): place for name, place in self.places.items()}
        found: dict[int, _Loaded] = {}
        for module in model.modules():
            for leaf, tensor in [*module._parameters.items(), *module._buffers.items()]:
                if tensor is not None and id(tensor) in places:
                    found.setdefault(id(tensor), (tensor, places[id(tensor)], []))[2].append((module, leaf))
        return list(found.values())


# A payload in a model, and the modules that have it under a name: several, where weights are tied.
_Loaded = tuple[torch.Tensor, Place, list[tuple[nn.Module, str]]]


def _order(loaded: _Loaded) -> int:
    _, place, users = loaded
    return min(_NEVER if kind is None else kind for kind in (_kind(module, leaf, place) for module, leaf in users))


def _kind(module: nn.Module, leaf: str, place: Place) -> int | None:
    """Return the kind of layer that keeps a module's tensor coded, or None if it is decoded."""
    if type(module) is nn.Linear and leaf == "weight":
        return _LINEAR
    if type(module) is nn.Embedding and leaf == "weight" and module.max_norm is None and not module.sparse:
        return _EMBEDDING
    is_stack = len(place.shape) == 3 and leaf in module._parameters
    return _EXPERTS if is_stack and (place.experts or getattr(module, "num_experts", None) == place.shape[0]) else None


def _let_decode(users: list[tuple[nn.Module, str]], place: Place, buffers: Buffers, piece: int) -> None:
    for module, leaf in users:
        if type(module) is nn.Linear or type(module) is nn.Embedding:
            module.__dict__["coded_weight"] = place.coded(buffers, 0, piece)
            module.__class__ = CodedLinear if type(module) is nn.Linear else CodedEmbedding
        else:
            let_decode(module, leaf, place.coded_experts(buffers, 1 + list(module._parameters).index(leaf)))


def _let_multiply(users: list[tuple[nn.Module, str]]) -> None:
    for module, _ in users:
        if type(module) is nn.Linear:
            module.__class__ = ResidentLinear


def _gather_blocks(model: nn.Module, buffers: Buffers, most: int) -> None:
    """Make the coded linear layers of each member of a module list decode together, if they are at most `most`
    bytes."""
    blocks: dict[CodedLinear, nn.Module] = {}
    for modules in (module for module in model.modules() if isinstance(module, nn.ModuleList)):
        for member in modules:  # lists in lists come later
            blocks |= {layer: member for layer in member.modules() if type(layer) is CodedLinear}
    for member in set(blocks.values()):
        layers = [layer for layer, owner in blocks.items() if owner is member]
        if len(layers) > 1 and sum(layer.__dict__["coded_weight"].size for layer in layers) <= most:
            CodedBlock(layers, buffers)


def memory_of(model: nn.Module) -> dict[str, int]:
    """Return the bytes of a loaded model: tensors as held, shared buffers, and the weights if decoded."""
    tensors = {id(tensor): tensor.nbytes for tensor in [*model.parameters(), *model.buffers()]}
    decoded_sizes: dict[int, int] = {}
    for module in model.modules():
        coded: dict[str, Any] = dict(experts_of(module))
        if "coded_weight" in module.__dict__:
            coded["weight"] = module.__dict__["coded_weight"]
        decoded_sizes |= {id(module._parameters[leaf]): weight.size for leaf, weight in coded.items()}
    buffers = cast(Buffers, model.squeeze_buffers)
    decoded_size = sum(decoded_sizes.get(key, size) for key, size in tensors.items())
    return {"tensors": sum(tensors.values()), "buffers": buffers.nbytes, "decoded": decoded_size}


def _mark_initialised(model: nn.Module, loaded: set[str]) -> None:
    """Keep transformers from initialising modules whose tensors are all loaded, since it would fail on payload
    shapes."""
    incomplete = {name for name, _ in model.named_parameters(remove_duplicate=False) if name not in loaded}
    incomplete |= {name for name, _ in model.named_buffers(remove_duplicate=False) if name not in loaded}
    above = {""} if incomplete else set()
    for name in incomplete:
        parts = name.split(".")
        above |= {".".join(parts[:n]) for n in range(len(parts))}
    for name, module in model.named_modules():
        if name not in above:
            module._is_hf_initialized = True  # type: ignore[assignment]


def _stored(files: list[str], named_base: Base | Path | str | None) -> dict[str, PackedTensor]:
    """Return every tensor of the packed files by name.

    Raises FormatError if a file is not packed, and SqueezeError if the base is missing, wrong or not needed.
    """
    packed = [_read(name) for name in files]
    base, found = base_of(packed, named_base), {}
    for one in packed:
        others = Others(one, base, Limits())
        for tensor, record in zip(one.file.tensors, one.description.records, strict=True):
            needs_others = record.coding.is_difference or record.coding.is_shared
            found[tensor.name] = PackedTensor(tensor.name, record, tensor.size, others if needs_others else None)
    return found


def _read(name: str) -> PackedFile:
    try:
        return container.read(Path(name))
    except FormatError as error:
        raise type(error)(f"{name}: {error}") from None


def base_of(packed: list[PackedFile], named_base: Base | Path | str | None) -> Base | None:
    """Return the base of packed files, or None if they hold no difference."""
    differences = [one for one in packed if one.description.base]
    if not differences:
        if isinstance(named_base, Path | str):
            folder = checkpoint_of(packed[0].file.path)
            raise SqueezeError(f"{escaped(str(folder))}: is no difference from a base, and needs none")
        return None
    if named_base is None:
        return Base.of(checkpoint_of(differences[0].file.path), Limits())
    base = named_base if isinstance(named_base, Base) else Base.open(named_base)
    for one in differences:
        base.check(one.description.base)
    return base


def _owner(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    path, _, leaf = name.rpartition(".")
    return model.get_submodule(path), leaf


def _held(module: nn.Module, leaf: str) -> torch.Tensor:
    tensor = module._parameters.get(leaf)
    return cast(torch.Tensor, module._buffers[leaf] if tensor is None else tensor)


def _put(users: list[tuple[nn.Module, str]], values: torch.Tensor) -> None:
    """Store one tensor in all modules that share it."""
    parameter = nn.Parameter(values, requires_grad=False)
    for module, leaf in users:
        if leaf in module._parameters:
            module._parameters[leaf] = parameter
        else:
            module._buffers[leaf] = values
