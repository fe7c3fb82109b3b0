"""A network's weights: from the tensors of a file to the arrays that the kernels read.

A matrix `name` is int8 [outputs, inputs] beside `name.scale`, float32 [outputs]; all else is float32. The blocks of a
stack are numbered: before.0.into, before.0.taps, ...
"""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np
import xxhash

from squeeze.codecs.recurrent.arrays import BYTES, GRAMS, TAPS, Matrices, Network, Stack, Weights, begin
from squeeze.errors import SqueezeError
from squeeze.numerics import exact, quads, tiles

FILE = Path(__file__).with_name("weights.safetensors")
CHECKSUM = 0xA9B9363C6DF90917  # XXH3-64 of the file: other weights give other bytes
_DAMAGED = f"the file {FILE.name} of the package is missing or damaged: install squeeze again"
_TYPES = {"I8": np.int8, "F32": np.float32}
Tensors = Mapping[str, np.ndarray]
STACKS = ("before", "words", "after")
MATRICES = ("into", "out", "gate_up", "down")  # of a block


def from_tensors(tensors: Tensors) -> Weights:
    """The weights in these tensors. Raises KeyError or ValueError where they are not those of a network."""
    embedding = np.ascontiguousarray(tensors["embedding"], np.float32)
    width, word_width = embedding.shape[1], tensors["up"].shape[0]
    weights = Weights(
        embedding=embedding,
        grams=_grams(tensors, width),
        gram_scales=_gram_scales(tensors),
        before=_stack(tensors, "before", width),
        up=_matrices(tensors, ["up"], (word_width, width)),
        words=_stack(tensors, "words", word_width),
        down=_matrices(tensors, ["down"], (width, word_width)),
        after=_stack(tensors, "after", width),
        head=_matrices(tensors, ["head"], (BYTES, width)),
        separates=separators(),
    )
    if embedding.shape[0] != BYTES:
        raise ValueError(f"there are {embedding.shape[0]} embeddings for 256 bytes")
    return weights


def network(wanted: bool) -> Network:
    """A fresh network: the pretrained one, or where none is wanted the smallest, which is never asked."""
    return begin(pretrained() if wanted else _none())


@cache
def pretrained() -> Weights:
    """The weights that are installed with the package. Raises SqueezeError where they are not those."""
    try:
        data = FILE.read_bytes()
    except OSError as error:
        raise SqueezeError(f"{_DAMAGED} ({error.strerror or error})") from error
    if xxhash.xxh3_64_intdigest(data) != CHECKSUM:
        raise SqueezeError(f"{_DAMAGED} (its checksum differs)")
    return from_tensors(_tensors(data))


def _tensors(data: bytes) -> dict[str, np.ndarray]:
    """Those of a safetensors file that is known to be whole: the way back of levels 5 and 6 needs no more packages."""
    start = 8 + int.from_bytes(data[:8], "little")
    entries, tensors = json.loads(data[8:start]), {}
    for name, entry in entries.items():
        begin, end = (start + offset for offset in entry["data_offsets"])
        tensors[name] = np.frombuffer(data[begin:end], _TYPES[entry["dtype"]]).reshape(entry["shape"])
    return tensors


@cache
def _none() -> Weights:
    sizes = {"embedding": (BYTES, tiles.PANEL), "up": (tiles.PANEL,) * 2, "down": (tiles.PANEL,) * 2}
    sizes["head"] = BYTES, tiles.PANEL
    tensors = {name: np.zeros(size, np.int8) for name, size in sizes.items()}
    return from_tensors(tensors | {f"{name}.scale": np.zeros(size[0], np.float32) for name, size in sizes.items()})


def separators() -> np.ndarray:
    """bool [256]: ASCII that is neither letter nor digit separates words."""
    return np.array([byte < 128 and not chr(byte).isalnum() for byte in range(BYTES)])


def _grams(tensors: Tensors, width: int) -> np.ndarray:
    if "grams.0" not in tensors:
        return np.zeros((0, 1, width), np.int8)
    tables = np.stack([tensors[f"grams.{k}"] for k in range(len(GRAMS))])
    rows = tables.shape[1]
    if tables.dtype != np.int8 or tables.shape[2] != width or rows & (rows - 1):
        raise ValueError("impossible embeddings")
    return tables


def _gram_scales(tensors: Tensors) -> np.ndarray:
    names = [f"grams.{k}" for k in range(len(GRAMS))] if "grams.0" in tensors else []
    return _vectors(tensors, [f"{name}.scale" for name in names], (tensors[names[0]].shape[0] if names else 1,))


def _stack(tensors: Tensors, name: str, width: int) -> Stack:
    blocks = sum(key.startswith(f"{name}.") and key.endswith(".taps") for key in tensors)
    names = [f"{name}.{block}" for block in range(blocks)]
    hidden = tensors[f"{name}.0.down"].shape[1] if blocks else tiles.PANEL
    shapes = {
        "into": (3 * width, width),
        "out": (width, width),
        "gate_up": (2 * hidden, width),
        "down": (width, hidden),
    }
    return Stack(
        **{kind: _matrices(tensors, [f"{one}.{kind}" for one in names], shapes[kind]) for kind in MATRICES},
        taps=_vectors(tensors, [f"{one}.taps" for one in names], (TAPS, width)),
        keeping=_vectors(tensors, [f"{one}.keeping" for one in names], (width,)),
    )


def _matrices(tensors: Tensors, names: list[str], shape: tuple[int, int]) -> Matrices:
    if shape[0] % tiles.PANEL or shape[1] % 4 or shape[1] > exact.CHUNK:
        raise ValueError(f"a matrix of {shape} is not of a network")
    for name in names:
        if tensors[name].shape != shape or tensors[name].dtype != np.int8:
            raise ValueError(f"{name} is not int8 {shape}")
    pack = quads.pack if quads.AVAILABLE else tiles.pack
    empty = np.zeros((0, *pack(np.zeros(shape, np.int8)).shape), np.int8)
    offsets = np.array([quads.offsets(tensors[name]) for name in names], np.int32).reshape(len(names), shape[0])
    panels = np.stack([pack(tensors[name]) for name in names]) if names else empty
    return Matrices(panels, offsets, _vectors(tensors, [f"{name}.scale" for name in names], shape[:1]))


def _vectors(tensors: Tensors, names: list[str], shape: tuple[int, ...]) -> np.ndarray:
    result = np.zeros((len(names), *shape), np.float32)
    for row, name in zip(result, names, strict=True):
        if tensors[name].shape != shape:
            raise ValueError(f"{name} has not the shape {shape}")
        row[...] = tensors[name]
    return result
