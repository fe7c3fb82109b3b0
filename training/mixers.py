"""`python -m training.mixers`: the dictionaries of the package, from samples of the corpus.

Mixers and adaptive maps beside the network learn from documents of all kinds, each coded by itself as a file would be.
Run it after a new network is in its place: they are made for it.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import click
import numpy as np
from safetensors.numpy import save_file

from squeeze.codecs.deep.learned import Start
from squeeze.codecs.stream import built_in, dictionary_file, levels, training
from squeeze.codecs.stream.container import Content
from training import corpus as corpora
from training.streams import text

_LENGTHS = 2_048, 8_192, 32_768  # bytes that are taken of a document: small files are learned from as much as large
_TEXT = Content("text")


def samples(corpus: Path, size: int, seed: int = 1) -> list[np.ndarray]:
    """The beginnings of documents, about `size` bytes, of every kind as many, shuffled."""
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


def make(level: int, pieces: list[np.ndarray]) -> dict[str, np.ndarray]:
    """The file's tensors: what a level's mixers learn from these, beginning with nothing."""
    preset = dictionary_file.preset_of(level, levels.level(level).numerics, _TEXT)
    known = training.learn(pieces, sum(piece.size for piece in pieces), replace(preset, taught=""), 0, Start(None, ()))
    return {f"matrix.{k:02}": _narrow(matrix) for k, matrix in enumerate(dictionary_file.matrices(known, preset))}


def _narrow(matrix: np.ndarray) -> np.ndarray:
    """In as few bits as hold it."""
    top = int(np.abs(matrix).max(initial=0))
    return matrix.astype(np.int8 if top < 1 << 7 else np.int16 if top < 1 << 15 else np.int32)


@click.command()
@click.option("--corpus", type=click.Path(path_type=Path, exists=True), required=True, help="What prepare wrote.")
@click.option("--into", type=click.Path(path_type=Path), default=built_in.FOLDER, help="A folder; the package's.")
@click.option("--megabytes", default=4.0, show_default=True, help="How much to learn from.")
@click.option("--level", type=click.Choice(["5", "6"]), multiple=True, default=("5", "6"), show_default=True)
def main(corpus: Path, into: Path, megabytes: float, level: tuple[str, ...]) -> None:
    """Write text.LEVEL.safetensors for each level."""
    pieces = samples(corpus, round(megabytes * 1e6))
    for one in level:
        target = into / f"text.{one}{built_in.SUFFIX}"
        save_file(make(int(one), pieces), target)
        click.echo(f"wrote {target}: {target.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
