"""Measure a store of fine-tunes of one base: its bytes, compared with the same models packed one by one.

The base is a small transformer after some steps of training, in bf16. Fine-tunes are real continuations of it with
Adam, all weights or the attention alone. Every model is restored from the store and compared.
"""

import argparse
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from safetensors.torch import save_file

import squeeze
from bench.measure import Measure, Row
from bench.shared.training import Training, Weights
from bench.tables import Column, Listing
from squeeze.packing.store import Store

_MODELS, _STEPS = 10, 20  # fine-tunes of the base, and steps of training of each
_KINDS = {1e-5: {"all weights, 1e-5": "", "attention, 1e-5": "self_attn"}, 1e-6: {"all weights, 1e-6": ""}}  # by rate


def rows(_: argparse.Namespace) -> Iterator[Row]:
    """Yield a row for each kind of fine-tune; those of one rate are trained once."""
    run = Training(_STEPS, seed=0)
    for rate, kinds in _KINDS.items():
        base, tuned = _trained(run, rate)
        for kind, part in kinds.items():
            with tempfile.TemporaryDirectory() as folder:
                yield {"fine-tunes": kind} | _row(Path(folder), base, tuned, part)


def _trained(run: Training, rate: float) -> tuple[Weights, list[Weights]]:
    """Return the base, and its fine-tunes with a learning rate."""
    run.restart()
    run.continue_at(0, seed=0)
    run.step()
    base, tuned = _copy(run.weights), list[Weights]()
    for number in range(_MODELS):
        run.restart()
        run.continue_at(rate, seed=number + 1)
        for _ in range(_STEPS):
            run.step()
        tuned.append(_copy(run.weights))
    return base, tuned


def _copy(weights: Weights) -> Weights:
    return {name: tensor.clone() for name, tensor in weights.items()}


def _row(root: Path, base: Weights, tuned: list[Weights], part: str) -> Row:
    """Measure fine-tunes of the weights with `part` in their names."""
    models = [_write(root / "base", base)]
    for number, weights in enumerate(tuned):
        changed = {name: tensor if part in name else base[name] for name, tensor in weights.items()}
        models.append(_write(root / f"tuned-{number}", changed))
    store, packed = Store(root / "store"), 0
    for model in models:
        store.add(model)
        squeeze.pack(model, root / "packed", overwrite=True)
        packed += _size(root / "packed") if model != models[0] else 0
    for model in models:
        store.get(model.name, root / "back", overwrite=True)
        if (root / "back/model.safetensors").read_bytes() != (model / "model.safetensors").read_bytes():
            raise SystemExit(f"Error: {model.name} did not come back")
    raw = sum(_size(model) for model in models[1:])
    found: Row = {"models": len(tuned), "raw": raw, "packed": packed, "store": store.size()}
    lmz = {"lmz": _lmz(root, models)} if shutil.which("lmz") else {}
    return found | {"of packed": store.size() / packed} | lmz


def _write(folder: Path, weights: Weights) -> Path:
    folder.mkdir()
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text("{}")
    return folder


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _lmz(root: Path, models: list[Path]) -> int:
    """Return the bytes of lmz's store with the same models."""
    store = root / "lmz"
    for model in models:
        command = ["lmz", "add", str(model), "--store", str(store), "--name", model.name]
        subprocess.run(command, check=True, capture_output=True)
    return _size(store)


MEASURE = Measure(
    rows,
    key=("fine-tunes",),
    rivals=("lmzip",),
    time=6,
    tables={
        "store": Listing(
            Column("fine-tunes", "fine-tunes"),
            Column("bytes", "raw", ","),
            Column("packed one by one", "packed", ","),
            Column("lmz store", "lmz", ","),
            Column("store with the base", "store", ","),
            Column("of packed", "of packed", ".3f"),
        )
    },
)
