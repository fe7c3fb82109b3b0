"""A safetensors file: no checksum, so what is read must be the bytes that the header names, in its types and shapes."""

import io
import json
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
import torch

import squeeze
from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.recipes.measure import inspect as inspecting
from tests.fuzz import mutations, tensorfiles
from tests.fuzz.judging import SAME, TRUE, Wrong, one_of
from tests.fuzz.limited import limited


@dataclass(frozen=True)
class Case:
    data: bytes
    way: str


class Safetensors:
    """Files of a few tensors, read as checkpoints, packed, and inspected."""

    seconds = 0.01

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.samples = [sample(), sample(shift=3, metadata={"format": "pt", "note": "ö"}), sample(names=("a",))]
        for way in ("load", "pack", "inspect"):
            (box := folder / way).mkdir()
            self.read(Case(self.samples[0], way), box)

    def mutate(self, random: Random) -> Case:
        data = random.choice(self.samples)
        changed = one_of(
            random,
            (2, lambda r: mutations.damaged(data, r)),
            (1, lambda r: mutations.spliced(data, r.choice(self.samples), r)),
            (5, lambda r: tensorfiles.mutated(tensorfiles.parsed(data), r)),
        )
        return Case(changed, random.choice(("load", "load", "pack", "inspect")))

    def read(self, case: Case, folder: Path) -> str:
        path = folder / "model.safetensors"
        path.write_bytes(case.data)
        ways = {"load": self._load, "pack": self._pack, "inspect": self._inspect}
        ways[case.way](case, path)
        return SAME if case.data in self.samples else TRUE

    @staticmethod
    def _load(case: Case, path: Path) -> None:
        (path.parent / "config.json").write_text('{"model_type": "llama"}')
        checkpoint = Checkpoint.open(path.parent)
        checkpoint.float_type()
        check_tensors(case.data, checkpoint.load(checkpoint.files))

    @staticmethod
    def _pack(case: Case, path: Path) -> None:
        packed, back = path.with_name("packed.safetensors"), path.with_name("back.safetensors")
        squeeze.pack(path, packed)
        limited(squeeze.unpack, packed, back)
        if back.read_bytes() != case.data:
            raise Wrong("pack and unpack give other bytes")

    @staticmethod
    def _inspect(case: Case, path: Path) -> None:
        said = io.StringIO()
        with redirect_stdout(said):
            print(inspecting.table(list(inspecting.inspect(path))))
        if not all(line.isprintable() for line in said.getvalue().split("\n")):
            raise Wrong("inspect: prints what a file holds as it stands")


def check_tensors(data: bytes, found: dict[str, torch.Tensor]) -> None:
    """Raises Wrong where tensors are not what the file's header declares, byte for byte."""
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header.pop(tensorfiles.METADATA, None)
    if set(header) != set(found):
        raise Wrong("load: other tensors than the header names")
    for name, tensor in found.items():
        begin, end = header[name]["data_offsets"]
        declared = data[8 + length + begin : 8 + length + end]
        if list(tensor.shape) != header[name]["shape"]:
            raise Wrong("load: another shape than declared")
        if tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes() != declared:
            raise Wrong("load: other bytes than declared")


def sample(
    shift: int = 0, metadata: dict[str, str] | None = None, names: tuple[str, ...] = ("a", "b.w", "c ö")
) -> bytes:
    """Matrices of bf16, fp16 and fp32, by these names."""
    generator = np.random.default_rng(shift)
    kinds = (("BF16", [8, 32]), ("F32", [7, 3]), ("F16", [40]))
    header: dict[str, object] = {} if metadata is None else {tensorfiles.METADATA: metadata}
    body = b""
    for name, (dtype, shape) in zip(names, kinds, strict=False):
        values = generator.standard_normal(shape).astype(np.float32)
        wide = values.view(np.uint32) >> 16
        kept = {"BF16": wide.astype(np.uint16), "F32": values, "F16": values.astype(np.float16)}[dtype].tobytes()
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(kept)]}
        body += kept
    return tensorfiles.TensorFile(header, body).to_bytes()


FORMAT = Safetensors
