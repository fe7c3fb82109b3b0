"""Make the package's trained mixers from samples of the corpus or of wheels (wheels.py): `python -m training.mixers`.

Mixers and adaptive maps learn from documents of all kinds or from pieces of programs, each coded as a file of its own.
Mixers with a network input learn with the network, so run this again after a new network is in place.
"""

import lzma
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import click
import numpy as np
from safetensors.numpy import save

from squeeze.codecs import package_data
from squeeze.codecs.bytewise import coder as bytewise, state
from squeeze.codecs.bytewise.presets import BY_LEVEL, WARM_START_KINDS, Preset
from squeeze.codecs.bytewise.state import ByteModel, build_model
from squeeze.codecs.content import Content
from squeeze.codecs.deep.initial_state import Start
from squeeze.codecs.stream import dictionary, dictionary_file, training
from squeeze.numerics.bitmodels import coder as arithmetic
from training import corpus as corpora, wheels as programs
from training.streams import text

_LENGTHS = 2_048, 8_192, 32_768  # bytes that are taken of a document: small files are learned from as much as large
_ROWS = 8192  # of adaptive probability maps that are kept, at levels 1 to 3
_LEARNED = ("weights", "final_weights", "apm_match", "apm_order2", "maps", "match_maps")  # arrays of a model
_APM_ROWS = {4: 16_384, 5: 4096, 6: 4096}  # and at levels 4 to 6: beside a network more bring little


def samples(corpus: Path, size: int, seed: int = 1) -> list[np.ndarray]:
    """Return starts of documents, about `size` bytes, the same number of every kind, shuffled.

    Args:
        corpus: folder of the corpus
        size: total in bytes
        seed: seed of the choice
    """
    split, kinds = corpora.read(corpus, "train"), corpora.names(corpus)["kinds"]
    generator = np.random.default_rng(seed)
    chosen: list[np.ndarray] = []
    for kind in range(len(kinds)):
        chosen += _of_kind(split, kind, size // len(kinds), generator)
    return [chosen[i] for i in generator.permutation(len(chosen))]


def _of_kind(split: corpora.Split, kind: int, size: int, generator: np.random.Generator) -> Iterator[np.ndarray]:
    taken = 0
    for document in generator.permutation(np.flatnonzero(split.kind == kind)):
        piece = np.array(text(split, int(document))[: int(generator.choice(_LENGTHS))], np.uint8)
        yield piece
        taken += piece.size
        if taken > size:
            return


def make(level: int, kind: str, pieces: list[np.ndarray]) -> dict[str, np.ndarray]:
    """Return the file's tensors: what a level's models learn from pieces, without trained values at the start.

    Args:
        level: level from 1 to 6
        kind: kind of content
        pieces: samples, each uint8
    """
    if level in BY_LEVEL:
        return state.tensors_of(_learned(pieces, BY_LEVEL[level][kind]), _ROWS)
    preset = dictionary_file.preset_of(level, Content(kind))
    size, fresh = sum(piece.size for piece in pieces), replace(preset, warm_start="")
    known = training.learn(pieces, size, fresh, 0, Start(None, ()), apm_rows=_APM_ROWS[level])
    return {f"matrix.{k:02}": _narrow(matrix) for k, matrix in enumerate(dictionary_file.matrices(known, preset))}


def _learned(pieces: list[np.ndarray], preset: Preset) -> ByteModel:
    """Return a model of levels 1 to 3 that has coded each piece as a file of its own."""
    model = None
    for piece in pieces:
        fresh = build_model(piece.copy(), preset)
        model = fresh if model is None else fresh._replace(**{name: getattr(model, name) for name in _LEARNED})
        coder, coded = np.zeros(3, np.uint64), np.zeros(2 * piece.size + 256, np.uint8)
        arithmetic.start_encoder(coder)
        bytewise.code(model, coder, coded, 0, piece.size, False)
    if model is None:
        raise click.UsageError("there is nothing to learn from")
    return model


def _narrow(matrix: np.ndarray) -> np.ndarray:
    """Return the matrix in the smallest integer type that holds it."""
    top = int(np.abs(matrix).max(initial=0))
    return matrix.astype(np.int8 if top < 1 << 7 else np.int16 if top < 1 << 15 else np.int32)


def file_of(tensors: dict[str, np.ndarray]) -> bytes:
    """Return a safetensors file of integers as `package_data.tensors` reads it."""
    types = {np.dtype(dtype): name for name, dtype in package_data.TYPES.items()}
    stored = {name: package_data.planes(tensor) for name, tensor in tensors.items()}
    return save(stored, {name: types[tensor.dtype] for name, tensor in tensors.items()})


@click.command()
@click.option("--corpus", type=click.Path(path_type=Path, exists=True), help="Folder that prepare wrote (text only).")
@click.option("--wheels", type=click.Path(path_type=Path, exists=True), help="Folder of wheels, instead of a corpus.")
@click.option("--kind", type=click.Choice(WARM_START_KINDS), default="text", show_default=True, help="Kind of content.")
@click.option("--into", type=click.Path(path_type=Path), help="Output folder, default: the folders of the package.")
@click.option("--megabytes", default=4.0, show_default=True, help="Megabytes to learn from.")
@click.option("--level", type=click.Choice([*"123456"]), multiple=True, default=("5", "6"), show_default=True)
def main(
    corpus: Path | None, wheels: Path | None, kind: str, into: Path | None, megabytes: float, level: tuple[str, ...]
) -> None:
    """Write the file KIND.LEVEL of the package for each level."""
    size = round(megabytes * 1e6)
    if wheels is not None and corpus is None:
        pieces = programs.samples(wheels, kind, size)
    elif corpus is not None and wheels is None and kind == "text":
        pieces = samples(corpus, size)
    else:
        raise click.UsageError("give either --wheels, or --corpus for text")
    for one in level:
        folder = into or (state.FOLDER if int(one) in BY_LEVEL else dictionary.FOLDER)
        suffix = state.SUFFIX if int(one) in BY_LEVEL else dictionary.SUFFIX
        target, data = folder / f"{kind}.{one}{suffix}", file_of(make(int(one), kind, pieces))
        target.write_bytes(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME) if suffix.endswith(".xz") else data)
        click.echo(f"wrote {target}: {target.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
