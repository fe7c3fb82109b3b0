"""Writing of a checkpoint as a GGUF file for llama.cpp, one tensor in memory at a time.

The gguf package has the container and the names of tensors. model.py reads such a file back.
"""

import errno
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory

import gguf
import numpy as np
import torch

from squeeze.checkpoint.architectures import HEAD
from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.engine.experts import taken_apart
from squeeze.errors import ModelError, OptionError, SqueezeError, printable
from squeeze.integrations.gguf import GgufModel, description
from squeeze.integrations.gguf.metadata import Metadata
from squeeze.quant.blocks import BlockTensor, grid_of, outer_type, type_of
from squeeze.quant.rtn import RTN
from squeeze.system.moving import move_into_place, sync
from squeeze.system.work import scratch_folder

__all__ = ["Export", "new_file", "padded"]

_ROWS = 4096  # of an embedding, quantised at once
_EXPERT = re.compile(r"\.experts\.(\d+)\.")
_LEFT_OUT = "rotary_emb.inv_freq"
_FILE_TYPES = {"q2_k": "MOSTLY_Q2_K", "q3_k": "MOSTLY_Q3_K_S", "q4_k": "MOSTLY_Q4_K_S", "q5_k": "MOSTLY_Q5_K_S"}
_FILE_TYPES |= {"mxfp4": "MOSTLY_MXFP4_MOE"}


@dataclass(frozen=True)
class _Tensor:
    """A tensor of the file.

    `sources` are the checkpoint's tensors, several for experts; `shape` is in bytes; `kind` is GGUF's name of the type.
    """

    sources: tuple[str, ...]
    shape: tuple[int, ...]
    kind: str


@dataclass(frozen=True)
class Export:
    """A checkpoint that can be written as GGUF. Create it with `of`.

    `types` has the block type of each module whose `weight` holds blocks, uint8 [O, bytes], in place of floats.
    """

    checkpoint: Checkpoint
    metadata: Metadata
    types: Mapping[str, str]

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> "Export":
        """Check a checkpoint and return its Export.

        Raises ModelError if llama.cpp cannot run the model, and FormatError if something is missing.
        """
        export = cls(taken_apart(checkpoint), Metadata.of(checkpoint), {})
        if export.metadata.family.tied and checkpoint.has_own_head:
            raise ModelError(
                f"{checkpoint.folder}: cannot be written as GGUF: its output head is not its embedding, and llama.cpp "
                f"takes the embedding as the head of {checkpoint.config['model_type']} models"
            )
        assert export.named
        return export

    def with_blocks(self, folder: Path, types: Mapping[str, str]) -> "Export":
        """Return the Export of a folder that was made from this one, with modules in blocks of these types."""
        return replace(self, checkpoint=taken_apart(Checkpoint.open(folder)), types=types)

    def check_alike(self, types: Mapping[str, str]) -> None:
        """Raise OptionError if matrices that share a tensor of the file would have different types.

        `types` are by module; other modules keep theirs.
        """
        for name, sources in self.named.items():
            found = [types.get(source.removesuffix(".weight")) for source in sources]
            kinds = [kind and type_of(kind) for kind in found]
            if odd := [source for source, kind in zip(sources, kinds, strict=True) if kind != kinds[0]]:
                fault = f"{printable(odd[0])} would have another type than {printable(sources[0])}"
                raise OptionError(f"{fault}, but GGUF holds both in one tensor, {name}")

    @cached_property
    def named(self) -> dict[str, tuple[str, ...]]:
        """The checkpoint's tensors that each tensor of the file is made of."""
        config, arch = self.checkpoint.config, gguf.MODEL_ARCH[self.metadata.family.name]
        names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
        found: dict[str, dict[int, str]] = {}
        for source in self.checkpoint.files:
            if source.endswith(_LEFT_OUT) or (source == f"{HEAD}.weight" and not self.checkpoint.has_own_head):
                continue
            expert, whole = _EXPERT.search(source), _EXPERT.sub(".experts.", source)
            name = names.get_name(whole.rpartition(".")[0])
            if name is None:
                raise ModelError(f"{self.checkpoint.folder}: GGUF has no name for the tensor {printable(source)}")
            found.setdefault(f"{name}.{whole.rpartition('.')[2]}", {})[int(expert[1]) if expert else 0] = source
        return {name: tuple(parts[i] for i in sorted(parts)) for name, parts in found.items()}

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks on the file for the report."""
        if window := self.metadata.window:
            return (
                f"llama.cpp attends to all tokens, and the model only to the last {window}: beyond these texts differ",
            )
        return ()

    @property
    def architecture(self) -> str:
        """GGUF's name of the architecture."""
        return gguf.MODEL_ARCH_NAMES[gguf.MODEL_ARCH[self.metadata.family.name]]

    def write(
        self,
        target: Path,
        asked: str | None = None,
        *,
        overwrite: bool = False,
        mixture: str | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> int:
        """Write the file, and return the bytes of its tensors.

        Args:
            target: The GGUF file.
            asked: Block type of the matrices, which also decides on those of embedding and head; None writes all as
                floats.
            overwrite: Whether an existing file is replaced.
            mixture: llama-quantize's name of the mixture of types, if it is one.
            progress: Called with the bytes of each tensor.
        """
        tensors, divisors = self._tensors(asked, mixture), self.metadata.divisors()
        with new_file(target, self.architecture, overwrite, _check_readable) as writer:
            self._write_head(writer, tensors, asked, mixture)
            if divisors is not None:
                writer.write_tensor_data(divisors)
            for name, tensor in tensors.items():
                data = self._data(name, tensor)
                writer.write_tensor_data(data)
                if progress:
                    progress(data.nbytes)
        return sum(prod(tensor.shape) for tensor in tensors.values())

    def size(self, asked: str | None, mixture: str | None = None) -> tuple[int, dict[str, int]]:
        """Return the bytes of the file without its tensors, and of each tensor with its padding; see `write`."""
        tensors, divisors = self._tensors(asked, mixture), self.metadata.divisors()
        with TemporaryDirectory() as folder:
            path = Path(folder) / "head"
            with closing(gguf.GGUFWriter(path, self.architecture)) as writer:
                self._write_head(writer, tensors, asked)
            head = path.stat().st_size
        head = padded(head) + (0 if divisors is None else padded(divisors.nbytes))
        return head, {name: padded(prod(tensor.shape)) for name, tensor in tensors.items()}

    def _tensors(self, asked: str | None, mixture: str | None = None) -> dict[str, _Tensor]:
        return {name: self._tensor(name, sources, asked, mixture) for name, sources in self.named.items()}

    def _write_head(
        self, writer: gguf.GGUFWriter, tensors: Mapping[str, _Tensor], asked: str | None, mixture: str | None = None
    ) -> None:
        """Write everything that precedes the tensors."""
        kind = int(gguf.LlamaFileType[f"MOSTLY_{mixture}"]) if mixture else self._file_type(asked)
        self.metadata.write(writer, self.metadata.folder.resolve().name, kind)
        if (divisors := self.metadata.divisors()) is not None:
            writer.add_tensor_info("rope_freqs.weight", divisors.shape, divisors.dtype, divisors.nbytes)
        for name, tensor in tensors.items():
            kind = gguf.GGMLQuantizationType[tensor.kind]
            writer.add_tensor_info(name, tensor.shape, np.dtype(np.uint8), prod(tensor.shape), kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()

    def _file_type(self, asked: str | None) -> int:
        if asked:
            kind = type_of(asked)
            return int(gguf.LlamaFileType[_FILE_TYPES.get(kind, f"MOSTLY_{kind.upper()}")])
        plain = {torch.float16: "MOSTLY_F16", torch.bfloat16: "MOSTLY_BF16"}
        return int(gguf.LlamaFileType[plain.get(self.checkpoint.float_type(), "ALL_F32")])

    def _tensor(self, name: str, sources: tuple[str, ...], asked: str | None, mixture: str | None) -> _Tensor:
        info = self.checkpoint.info(sources[0])
        shape = (*((len(sources),) if _EXPERT.search(sources[0]) else ()), *info.shape)
        if kind := self.types.get(sources[0].removesuffix(".weight")):
            return _Tensor(sources, shape, type_of(kind).upper())
        kind = {"BF16": "BF16", "F16": "F16"}.get(info.dtype, "F32")
        if len(info.shape) < 2 or name.endswith("ffn_gate_inp.weight"):  # llama.cpp has them in no other type
            kind = "F32"
        elif asked and name in ("token_embd.weight", "output.weight"):
            alone = name == "token_embd.weight" and "output.weight" in self.named
            kind = type_of(outer_type(asked, shape[-1], not alone, mixture) or kind).upper()
        return _Tensor(sources, gguf.quants.quant_shape_to_byte_shape(shape, gguf.GGMLQuantizationType[kind]), kind)

    def _data(self, name: str, tensor: _Tensor) -> np.ndarray:
        """Return the bytes of a tensor, uint8 of its shape."""
        heads, parts = self.metadata.heads(name), []
        for source in tensor.sources:
            values = self.checkpoint.load([source], strict=False)[source]
            if shift := self.metadata.shift(name):
                values = values.float() + shift
            if heads:  # rotary pairs side by side
                values = values.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)
            parts.append(values if values.dtype == torch.uint8 else _as_bytes(values, tensor.kind))
        return torch.cat(parts).reshape(tensor.shape).numpy()


def padded(size: int) -> int:
    """Return the bytes that a tensor of `size` bytes takes in a file."""
    return -(-size // gguf.GGUF_DEFAULT_ALIGNMENT) * gguf.GGUF_DEFAULT_ALIGNMENT


@contextmanager
def new_file(
    target: Path, architecture: str, overwrite: bool, check: Callable[[Path], object] | None = None
) -> Iterator[gguf.GGUFWriter]:
    """Open a writer of a GGUF file, which gets its name when it is complete.

    Args:
        target: The file.
        architecture: GGUF's name of the architecture.
        overwrite: Whether an existing file is replaced.
        check: Called with the written file; raises SqueezeError if it cannot be read.
    """
    with scratch_folder(target) as work, _disk_told(target):
        writer = gguf.GGUFWriter(work / "gguf", architecture)
        try:
            yield writer
        finally:
            writer.close()
        if check:
            with _told_of(target):
                check(work / "gguf")
        sync(work / "gguf")
        move_into_place(work / "gguf", target, overwrite)


def _check_readable(path: Path) -> None:
    """Raise ModelError if squeeze cannot read the header of a file."""
    description(GgufModel.open(path))


@contextmanager
def _told_of(target: Path) -> Iterator[None]:
    try:
        yield
    except SqueezeError as error:
        raise ModelError(f"{target}: could not be read back: {error}; nothing was written") from None


@contextmanager
def _disk_told(target: Path) -> Iterator[None]:
    """Make OSErrors name `target`; numpy's error of a full disk has no number."""
    try:
        yield
    except OSError as error:
        why = error.strerror or "the disk does not take all of the file"
        raise OSError(error.errno or errno.EIO, why, str(target)) from None


def _as_bytes(values: torch.Tensor, kind: str) -> torch.Tensor:
    """Return floats as bytes of a GGUF type, uint8 [..., bytes of a row]."""
    dtype = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}.get(kind)
    if dtype is not None:
        return values.to(dtype).contiguous().view(torch.uint8)
    return torch.cat(list(_rounded(values, kind.lower())))


def _rounded(values: torch.Tensor, kind: str) -> Iterator[torch.Tensor]:
    """Yield the blocks of some rows at a time, rounded to nearest."""
    for rows in torch.split(values, _ROWS):
        tensor = RTN(grid=grid_of(kind)).apply(rows)
        assert isinstance(tensor, BlockTensor)
        yield tensor.blocks()
