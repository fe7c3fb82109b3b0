"""Fine-tuning of the small pretrained network of levels 5 and 6 on samples, stored in a dictionary with them.

One of every twenty pieces of samples is held out, or of all if there are fewer. Three train the mixers' trust in the
network. The network learns from the rest, since it would seem too good on what it was trained on. The change is kept
only if it makes the held-out pieces smaller. Otherwise all samples make a plain dictionary.
"""

import hashlib
import math
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from squeeze.codecs.content import Content
from squeeze.codecs.recurrent import weights
from squeeze.codecs.recurrent.change import Change
from squeeze.codecs.stream import blocks, levels, training as dictionaries
from squeeze.codecs.stream.compressor import compress
from squeeze.codecs.stream.dictionary import Dictionary
from squeeze.codecs.stream.training import TrainingPieces
from squeeze.errors import DictionaryError, LevelError
from squeeze.recipes.train.distil import Training
from squeeze.recipes.train.trainer import Loss, Trainer, cast
from squeeze.recipes.train.tuned_network import TunedNetwork
from squeeze.system import files
from squeeze.system.storage import path_of
from squeeze.system.work import discards, work_folder

__all__ = ["Sizes", "Tuning", "tune"]

_LENGTH = 512  # bytes of a sequence
_MOST = 1 << 17  # sequences
_HELD_AT_ONCE = 8  # sequences
_RATE = 0.01  # of Adam, of the typical size of a row's weights
_SHARES = 20  # of pieces: one is held out, and
_TEACHING = 3  # so many teach the mixers
_HELD = 1 << 16  # bytes that are held out, at most
_ZSTD_SIZES = (
    32 << 10,
    110 << 10,
    220 << 10,
    512 << 10,
)  # bytes of dictionaries; zstd makes 110 KiB when nothing is said
_ZSTD_LEVEL = "-19"
_ZSTD_MOST = 1 << 24  # bytes to train on


@dataclass(frozen=True)
class Sizes:
    """Bytes of the held-out pieces, each compressed by itself, with headers and without dictionaries."""

    raw: int
    zstd: int | None  # with the best of its dictionaries; None where there is no zstd
    alone: int  # by the level without a dictionary
    plain: int  # with a dictionary that changes no network
    tuned: int  # with one that does


@dataclass(frozen=True)
class Tuning:
    """Result of a training; `before` and `after` are bits a byte of the held-out pieces, by the network alone."""

    dictionary: Dictionary
    sizes: Sizes
    before: float
    after: float
    steps: int

    @property
    def changes_network(self) -> bool:
        """True if the dictionary changes the network."""
        return self.dictionary.change is not None


@dataclass(frozen=True)
class _Divided:
    """Pieces of samples by purpose."""

    content: Content
    pieces: list[np.ndarray]  # all of them
    training_pieces: list[np.ndarray]
    teaching: list[np.ndarray]
    held_out: list[np.ndarray]

    def digest(self) -> str:
        hashed = hashlib.sha256()
        for piece in (*self.training_pieces, *self.teaching, *self.held_out):
            hashed.update(len(piece).to_bytes(4, "little") + piece.tobytes())
        return hashed.hexdigest()


def tune(
    samples: Sequence[Path],
    out: Path,
    training: Training,
    level: int = dictionaries.LEVEL,
    text_size: int = dictionaries.TEXT_SIZE,
    learn_size: int = dictionaries.LEARN_SIZE,
    overwrite: bool = False,
) -> Tuning:
    """Make a dictionary at level 5 or 6 whose network is fine-tuned on samples, and write it to a file.

    A stopped run is continued.

    Args:
        samples: Sample files.
        out: File to write.
        training: How long training takes, its rate, batch and seed.
        level: 5 or 6.
        text_size: Largest number of bytes of text in the dictionary.
        learn_size: Largest number of bytes that the models learn from.
        overwrite: Whether to replace an existing file.

    Raises:
        LevelError: If the level has no network.
        DictionaryError: If samples are too few, compressed already, or tables, which are coded without the network.
    """
    dictionaries.check(level, text_size, learn_size)
    files.check_target(path_of(out), samples, overwrite)
    divided = _divide(samples, level)
    text, _ = dictionaries.split_pieces(divided.training_pieces, text_size)
    first = int(text[-1][-1]) if text else 0
    net = TunedNetwork(weights.pretrained_tensors()).to(training.device)
    held_out = _sequences(divided.held_out, first, 4 * _LENGTH)
    before = _bits_a_byte(net, held_out)
    task = {"samples": divided.digest(), "level": level, "text": text_size, **training.described()}
    with work_folder(out, "network", task, discards(training.resume, overwrite)) as work:
        steps = _train(net, _sequences(divided.training_pieces, first, _LENGTH), training, work / "state.pt")
        after = _bits_a_byte(net, held_out)
        lessons = TrainingPieces(text, divided.teaching, text)
        coded, sizes = _better(divided, lessons, level, text_size, learn_size, net.change())
        with files.replacing(path_of(out), overwrite=overwrite) as file:
            file.write(coded)
    return Tuning(Dictionary.from_bytes(coded), sizes, before, after, steps)


def _divide(samples: Sequence[Path], level: int) -> _Divided:
    content, pieces = dictionaries.sample_pieces(samples)
    if not getattr(levels.LEVELS[level].models(content.kind), "network", False):
        if content.kind == "table":
            raise DictionaryError("the samples are tables, which are coded without the network: leave `minutes` out")
        raise LevelError(f"level {level} has no network: train at level 5 or 6")
    place = np.random.default_rng(0).permutation(len(pieces)) % _SHARES
    held_out = [piece for piece, at in zip(pieces, place, strict=True) if at == 0]
    teaching = [piece for piece, at in zip(pieces, place, strict=True) if 0 < at <= _TEACHING]
    learned = [piece for piece, at in zip(pieces, place, strict=True) if at > _TEACHING]
    every = max(round(sum(map(len, held_out)) / _HELD), 1)
    return _Divided(content, pieces, learned, teaching, held_out[every // 2 :: every])


def _sequences(pieces: list[np.ndarray], first: int, length: int) -> torch.Tensor:
    """Return at most a number of sequences of the pieces, int16 [N, length + 1], each after its preceding byte, padded
    by -1.
    """
    places = [(piece, start) for piece in pieces for start in range(0, len(piece), length)]
    places = places[:: -(-len(places) // _MOST)]
    rows = np.full((len(places), length + 1), -1, np.int16)
    for row, (piece, start) in zip(rows, places, strict=True):
        row[0] = piece[start - 1] if start else first
        part = piece[start : start + length]
        row[1 : 1 + part.size] = part
    return torch.from_numpy(rows)


class _Tuning(Trainer):
    """A trainer of the change of a network on sequences."""

    def __init__(self, net: TunedNetwork, tokens: torch.Tensor, training: Training, state: Path) -> None:
        self.net, self.at_once = net, training.batch
        super().__init__(net.trained, tokens, training.rate or _RATE, training.batch, training.seed, state)

    def loss_at(self, share: float) -> Loss:
        return lambda ids: _loss(self.net, ids, self.net.weights())


def _loss(net: TunedNetwork, ids: torch.Tensor, weights_by_name: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the mean loss of sequences in nats, without the first byte of each."""
    ids = ids[:, : int((ids >= 0).sum(1).max())].long()
    logits, _ = net(ids[:, :-1].clamp(min=0), net.start(len(ids)), weights_by_name)
    return functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), ignore_index=-1)


def _train(net: TunedNetwork, tokens: torch.Tensor, training: Training, state: Path) -> int:
    run = _Tuning(net, tokens, training, state)

    def tick(count: int) -> None:
        if training.progress:
            bits = run.losses[-1] / math.log(2)
            training.progress(f"network, {bits:.3f} bits a byte", run.step, training.steps or 0)

    run.go(60 * training.minutes, training.steps, tick)
    return run.step


@torch.no_grad()
def _bits_a_byte(net: TunedNetwork, held_out: torch.Tensor) -> float:
    known, device = net.weights(), next(net.parameters()).device
    total, count = 0.0, 0
    with cast(device):
        for ids in torch.split(held_out.to(device), _HELD_AT_ONCE):
            size = int((ids[:, 1:] >= 0).sum())
            total += float(_loss(net, ids, known)) * size
            count += size
    return total / math.log(2) / count


def _better(
    divided: _Divided, lessons: TrainingPieces, level: int, text_size: int, learn_size: int, change: Change
) -> tuple[bytes, Sizes]:
    """Return the dictionary with the network's change if that makes held-out pieces smaller, else a plain one of all
    pieces.
    """
    variants = [dictionaries.make(level, divided.content, lessons, learn_size, one) for one in (None, change)]
    held_out, training_pieces = (
        _unfiltered(part, divided.content) for part in (divided.held_out, divided.training_pieces + divided.teaching)
    )
    plain, tuned = (_size(held_out, level, Dictionary.from_bytes(one)) for one in variants)
    sizes = Sizes(
        raw=sum(map(len, held_out)),
        zstd=best_of_zstd(training_pieces, held_out),
        alone=_size(held_out, level, None),
        plain=plain,
        tuned=tuned,
    )
    if tuned < plain:
        return variants[1], sizes
    return dictionaries.train_on_pieces(level, divided.content, divided.pieces, text_size, learn_size), sizes


def _unfiltered(pieces: list[np.ndarray], content: Content) -> list[np.ndarray]:
    """Return pieces as they are in files; the models see executables after a filter."""
    if content.kind != "executable":
        return pieces
    pieces = [piece.copy() for piece in pieces]
    for piece in pieces:
        blocks.calls_to_relative(piece)
    return pieces


def _size(pieces: list[np.ndarray], level: int, dictionary: Dictionary | None) -> int:
    return sum(len(compress(piece.tobytes(), level, dictionary=dictionary, verify=False)) for piece in pieces)


def best_of_zstd(samples: Sequence[np.ndarray], measured: Sequence[np.ndarray]) -> int | None:
    """Return the bytes of pieces, each compressed with the best dictionary that zstd trains on samples.

    Returns None if zstd is not installed, or fails to train one.
    """
    program = shutil.which("zstd")
    if program is None:
        return None
    every = max(sum(map(len, samples)) // _ZSTD_MOST, 1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        training_folder, measured_folder = (
            _write_pieces(folder / "learned", samples[::every]),
            _write_pieces(folder / "measured", measured),
        )
        sizes = [_zstd_size(program, folder, training_folder, measured_folder, size) for size in _ZSTD_SIZES]
    return min((size for size in sizes if size is not None), default=None)


def _write_pieces(folder: Path, pieces: Sequence[np.ndarray]) -> Path:
    folder.mkdir()
    for number, piece in enumerate(pieces):
        (folder / str(number)).write_bytes(piece.tobytes())
    return folder


def _zstd_size(program: str, folder: Path, samples: Path, measured: Path, size: int) -> int | None:
    dictionary, coded = folder / str(size), folder / f"{size}.coded"
    coded.mkdir()
    training = [program, "-q", "--train", "-r", str(samples), f"--maxdict={size}", "-o", str(dictionary)]
    coding = [program, "-q", _ZSTD_LEVEL, "-D", str(dictionary), "-r", str(measured), "--output-dir-flat", str(coded)]
    for command in (training, coding):
        if subprocess.run(command, capture_output=True, check=False).returncode:
            return None
    return sum(path.stat().st_size for path in coded.iterdir())
