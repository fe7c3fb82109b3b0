"""Packed weights in a model: payloads in the place of tensors, decoded when they are used or once they are loaded.

Large weights of linear layers and embeddings stay coded. How transformers comes to call this is transformers.py's and
loading.py's.
"""

from __future__ import annotations

from pathlib import Path
from typing import cast

import torch
from torch import nn
from torch.nn import functional

from squeeze.checkpoint import safetensors as tensorfile
from squeeze.checkpoint.safetensors import named
from squeeze.errors import DamagedError, FormatError
from squeeze.kernels import df_decode
from squeeze.packing import container
from squeeze.packing.container import Record
from squeeze.packing.load import torch_dtype

__all__ = ["Buffers", "CodedEmbedding", "CodedLinear", "CodedWeight", "Payloads", "is_packed", "memory_of"]

LARGE_SHARE = 16  # a linear weight of more than this part of the model is decoded some rows at a time
_LEAST_CODED = 1 << 16  # bytes: smaller tensors are decoded once
_LEAST_PIECE = 1 << 20  # bytes
_SHARED = 1 << 22  # bytes from which threads share the decoding of a weight


def is_packed(files: list[str]) -> bool:
    """Whether all files of a checkpoint are packed. Raises FormatError where only some are."""
    packed = [container.is_packed(tensorfile.read(Path(name))) for name in files]
    if any(packed) and not all(packed):
        raise FormatError(f"{files[packed.index(False)]}: is not packed, and others of the checkpoint are")
    return any(packed)


class Buffers:
    """Memory that the coded modules of a model share, a buffer for each device, and how they decode."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[torch.device, int], torch.Tensor] = {}

    def take(self, device: torch.device, slot: int, size: int) -> torch.Tensor:
        """`size` bytes; what was decoded there before is gone. Slots are for weights used at the same time."""
        buffer = self._buffers.get((device, slot))
        if buffer is None or buffer.numel() < size:
            self._buffers.pop((device, slot), None)
            buffer = torch.empty(size, dtype=torch.uint8, device=device)
            self._buffers[device, slot] = buffer
        return buffer[:size]

    @property
    def nbytes(self) -> int:
        return sum(buffer.numel() for buffer in self._buffers.values())


class CodedWeight:
    """How the payload in a module's `_parameters` becomes a weight."""

    def __init__(self, record: Record, dtype: torch.dtype, buffers: Buffers, slot: int, piece: int):
        self.record = record
        self.dtype = dtype  # that the model computes in
        self.buffers = buffers
        self.slot = slot
        self.piece = piece  # bytes decoded at a time, where rows can be taken apart
        self._prepared: tuple[torch.Tensor, df_decode.Prepared] | None = None

    def prepare(self, payload: torch.Tensor) -> df_decode.Prepared:
        if self._prepared is None or self._prepared[0] is not payload:
            self._prepared = payload, df_decode.prepare(payload.data, self.record.dtype, self.record.size)
        return self._prepared[1]

    def decode(self, payload: torch.Tensor, fresh: bool) -> torch.Tensor:
        """The whole weight, in shared memory unless `fresh`."""
        out = None if fresh else self.buffers.take(payload.device, self.slot, self.record.size)
        values = df_decode.decode(self.prepare(payload), out, _threads(self.record.size))
        return values.view(self.record.shape).to(self.dtype)

    def rows(self, payload: torch.Tensor, first: int, last: int) -> torch.Tensor:
        """Rows first to last of a matrix, in shared memory."""
        prepared, columns = self.prepare(payload), self.record.shape[1]
        begin, end = first * columns, last * columns
        segments = range(begin // prepared.per_segment, -(-end // prepared.per_segment))
        size = len(segments) * prepared.per_segment * prepared.bits // 8
        out = self.buffers.take(payload.device, self.slot, size)
        values = df_decode.decode_segments(prepared, list(segments), out=out, threads=_threads(size))
        skip = begin - segments.start * prepared.per_segment
        return values.view(-1)[skip : skip + end - begin].view(last - first, columns).to(self.dtype)

    def gather(self, payload: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        """Some rows of a matrix, [*indices.shape, columns]; each segment that holds one is decoded once."""
        prepared, columns = self.prepare(payload), self.record.shape[1]
        size, device = prepared.per_segment, payload.device
        unique_rows, place = torch.unique(indices.reshape(-1), return_inverse=True)
        positions = unique_rows[:, None] * columns + torch.arange(columns, device=unique_rows.device)  # [rows, columns]
        segments, segment_of = torch.unique(positions // size, return_inverse=True)
        rows = torch.empty((len(unique_rows), columns), dtype=df_decode.TORCH_DTYPES[self.record.dtype], device=device)
        at_a_time = max(1, self.piece // (size * prepared.bits // 8))
        for start in range(0, len(segments), at_a_time):
            chosen = segments[start : start + at_a_time].tolist()
            decoded = df_decode.decode_segments(prepared, chosen, threads=torch.get_num_threads())
            in_batch = (segment_of >= start) & (segment_of < start + len(chosen))
            rows[in_batch] = decoded.view(-1)[(segment_of[in_batch] - start) * size + positions[in_batch] % size]
        return rows.to(self.dtype)[place].view(*indices.shape, columns)


def _threads(size: int) -> int:
    """For so many bytes: few are decoded sooner than other threads wake up."""
    return torch.get_num_threads() if size >= _SHARED else 1


def _weight(module: nn.Module) -> torch.Tensor:
    """The decoded weight of a coded module, for whoever asks for `module.weight`."""
    coded = cast(CodedWeight, module.__dict__["coded_weight"])
    return coded.decode(cast(torch.Tensor, module._parameters["weight"]), fresh=torch.is_grad_enabled())


class CodedLinear(nn.Linear):
    """A linear layer whose weight is a payload."""

    weight = property(_weight)  # type: ignore[assignment]

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        coded = cast(CodedWeight, self.__dict__["coded_weight"])
        payload = cast(torch.Tensor, self._parameters["weight"])
        fresh = torch.is_grad_enabled() and input.requires_grad
        if fresh or coded.record.size <= coded.piece:
            return functional.linear(input, coded.decode(payload, fresh), self.bias)
        step = max(coded.piece // (coded.record.size // self.out_features) // 64 * 64, 64)
        out = input.new_empty((*input.shape[:-1], self.out_features))
        for first in range(0, self.out_features, step):
            last = min(first + step, self.out_features)
            bias = None if self.bias is None else self.bias[first:last]
            out[..., first:last] = functional.linear(input, coded.rows(payload, first, last), bias)
        return out


class CodedEmbedding(nn.Embedding):
    """An embedding whose weight is a payload."""

    weight = property(_weight)  # type: ignore[assignment]

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        coded = cast(CodedWeight, self.__dict__["coded_weight"])
        if input.numel() == 0:
            return torch.empty((*input.shape, self.embedding_dim), dtype=coded.dtype, device=input.device)
        return coded.gather(cast(torch.Tensor, self._parameters["weight"]), input)


_CODED_CLASSES: dict[type[nn.Module], type[nn.Module]] = {nn.Linear: CodedLinear, nn.Embedding: CodedEmbedding}


class _Waiting:
    """A layer that holds payloads so far, and can make no weight of them; transformers asks for it when it initialises
    what was not loaded."""

    weight = torch.empty(0)


class Payloads:
    """The payloads of packed files on their way into a model."""

    def __init__(self, files: list[str], share: int = LARGE_SHARE) -> None:
        """share: a linear weight of more than 1 / share of the model's bytes is decoded some rows at a time; 0 decodes
        every one whole. Raises FormatError where the files are not packed for this."""
        self.records, self.share = _records(files), share
        self.places: dict[str, tuple[Record, torch.dtype]] = {}

    def place(self, model: nn.Module) -> None:
        """Give every parameter and buffer that is in the files the shape of its payload."""
        prefix = getattr(model, "base_model_prefix", "")
        tied = dict(getattr(model, "all_tied_weights_keys", None) or {})
        for name, tensor in [*model.named_parameters(remove_duplicate=False), *model.named_buffers()]:
            stored_name = next((n for n in _spellings(tied.get(name, name), prefix) if n in self.records), None)
            stored_name = stored_name or next((n for n in _spellings(name, prefix) if n in self.records), None)
            if stored_name is None:
                continue
            record, size = self.records[stored_name]
            if tuple(tensor.shape) != record.shape:
                raise FormatError(f"{named(stored_name)} has shape {record.shape}, but the model needs {tensor.shape}")
            self.places[name] = record, tensor.dtype
            module, leaf = _owner(model, name)
            payload = torch.empty(size, dtype=torch.uint8, device="meta")
            if leaf in module._parameters:
                module._parameters[leaf] = nn.Parameter(payload, requires_grad=False)
            else:
                module._buffers[leaf] = payload
        for module in model.modules():
            kind = type(module)
            if isinstance(getattr(kind, "weight", None), property):
                module.__class__ = type(kind.__name__, (_Waiting, kind), {})

    def settle(self, model: nn.Module) -> None:
        """Decode what was loaded, or let it be where the module decodes it."""
        for module in model.modules():
            if isinstance(module, _Waiting):
                module.__class__ = type(module).__mro__[2]
        buffers, decoded = Buffers(), {}
        total = sum(record.size for record, _ in self.records.values())
        piece = max(total // self.share, _LEAST_PIECE) if self.share else total + 1
        for name, (record, dtype) in self.places.items():
            module, leaf = _owner(model, name)
            payload: torch.Tensor | None = module._parameters.get(leaf)
            if payload is None:
                payload = module._buffers[leaf]
            assert payload is not None
            coded_class = _CODED_CLASSES.get(type(module)) if leaf == "weight" else None
            plain = not isinstance(module, nn.Embedding) or _is_plain(module)
            if coded_class and plain and record.coding == container.RANS and record.size >= _LEAST_CODED:
                module.__dict__["coded_weight"] = CodedWeight(record, dtype, buffers, 0, piece)
                module.__class__ = coded_class
                continue
            if id(payload) not in decoded:
                decoded[id(payload)] = payload, _decoded(name, payload.data, record).to(dtype)
            values = decoded[id(payload)][1]
            if leaf in module._parameters:
                module._parameters[leaf] = nn.Parameter(values, requires_grad=False)
            else:
                module._buffers[leaf] = values
        model.squeeze_buffers = buffers  # type: ignore[assignment]


def memory_of(model: nn.Module) -> dict[str, int]:
    """Bytes of a loaded model: its tensors as they are held, the shared buffers, and what the weights are decoded."""
    tensors = {id(tensor): tensor.nbytes for tensor in [*model.parameters(), *model.buffers()]}
    records = {
        id(module._parameters["weight"]): cast(CodedWeight, module.__dict__["coded_weight"]).record.size
        for module in model.modules()
        if "coded_weight" in module.__dict__
    }
    buffers = cast(Buffers, model.squeeze_buffers)
    decoded = sum(records.get(key, size) for key, size in tensors.items())
    return {"tensors": sum(tensors.values()), "buffers": buffers.nbytes, "decoded": decoded}


def _is_plain(module: nn.Embedding) -> bool:
    return module.max_norm is None and not module.sparse


def _records(files: list[str]) -> dict[str, tuple[Record, int]]:
    """Record and payload size of every tensor in the packed files. Raises FormatError where they are not for this."""
    records = {}
    for name in files:
        try:
            packed = container.read(Path(name))
        except FormatError as error:
            raise type(error)(f"{name}: {error}") from None
        for tensor, record in zip(packed.file.tensors, packed.description.records, strict=True):
            if record.coding.startswith(container.DELTA) or record.coding.endswith(container.ARCHIVE):
                raise FormatError(
                    f"{name}: {named(tensor.name)} is coded as {record.coding}, which is for storage: "
                    "unpack the checkpoint, and pack it again at the level runtime without a base"
                )
            records[tensor.name] = record, tensor.size
    return records


def _spellings(name: str, prefix: str) -> tuple[str, ...]:
    """Names that a tensor of the model may have in a checkpoint saved with or without its head."""
    return (name, f"{prefix}.{name}", name.removeprefix(f"{prefix}.")) if prefix else (name,)


def _owner(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    path, _, leaf = name.rpartition(".")
    return model.get_submodule(path), leaf


def _decoded(name: str, payload: torch.Tensor, record: Record) -> torch.Tensor:
    """The values of a payload, compared with their checksum where that brings nothing back from a device."""
    try:
        values = _values(name, payload, record)
    except DamagedError as error:
        raise DamagedError(f"{named(name)}: {error}") from None
    if record.size and values.device.type == "cpu":
        container.check_tensor(values.reshape(-1).view(torch.uint8).numpy(), record, name)
    return values


def _values(name: str, payload: torch.Tensor, record: Record) -> torch.Tensor:
    dtype = torch_dtype(record.dtype, name)
    if record.coding == container.STORED:
        return payload.view(dtype).view(record.shape) if record.size else torch.empty(record.shape, dtype=dtype)
    if record.coding != container.RANS:
        values = container.decode_tensor(payload.cpu().numpy(), record, None, torch.get_num_threads())
        return torch.from_numpy(values).to(payload.device).view(dtype).view(record.shape)
    prepared = df_decode.prepare(payload, record.dtype, record.size)
    return df_decode.decode(prepared, threads=torch.get_num_threads()).view(record.shape)
