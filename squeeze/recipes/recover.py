"""`squeeze.recover`: what a compressed folder still can learn is trained towards the dense original's outputs.

Weights on grids learn their scales, and if requested their codes (train/grids.py); sparse weights in floating point
learn their values (train/masked.py). Norms and biases are trained with both. The result has the format of the input.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.checkpoint.pretrained import is_causal, load_config
from squeeze.engine.pipeline import Progress
from squeeze.engine.report import NAME as REPORT, Layer, Report
from squeeze.errors import ModelError, OptionError, SqueezeError, printable
from squeeze.options import values_of
from squeeze.packing import folder
from squeeze.packing.manifest import MANIFEST
from squeeze.prune.sparse24 import METHOD as SPARSE
from squeeze.recipes.options import MOVE, RECOVER_FOLDER, RecoveringFolder
from squeeze.recipes.tokens import calibration_name, calibration_tokens
from squeeze.recipes.train.distil import Healing, Training
from squeeze.recipes.train.grids import Grids
from squeeze.recipes.train.masked import sparse_opening
from squeeze.recipes.train.retrain import Retraining
from squeeze.recipes.train.student import Opening
from squeeze.system.storage import local_path
from squeeze.system.work import other_settings

__all__ = ["has_codes", "recover"]

_HELD_OUT = 4  # sequences that nothing is trained on
_BLOCKS = 0.4  # share of the time in which blocks of codes learn alone
_SAME = ("model_type", "hidden_size", "num_hidden_layers", "intermediate_size", "num_attention_heads", "vocab_size")


def recover(
    source: Path | str,
    *,
    base: Path | str,
    out: Path | str,
    resume: bool = False,
    overwrite: bool = False,
    device: str = "cpu",
    progress: Progress | None = None,
    **options: Any,
) -> Report:
    """Train a quantised or pruned model towards its original's outputs, and write it in the same format.

    A stopped run goes on.

    Args:
        source: Folder of the compressed model.
        base: Folder of the dense original.
        out: Folder to write.
        resume: Whether to require a stopped run; a complete `out` is kept.
        overwrite: Whether to replace an existing folder.
        device: Torch device.
        progress: Called with what is done and what is left.
        options: Fields of options.RecoveringFolder: calibration, duration, and whether codes move.

    Raises:
        SqueezeError: If an input or an option is invalid.
    """
    source, base, out = local_path(source), local_path(base), local_path(out)
    settings = RECOVER_FOLDER.read(options).settings
    described = _described(source, base, settings)
    if resume and (out / REPORT).is_file():
        return _written(out, described)
    folder.check_target(source, out, overwrite)
    folder.check_target(base, out, overwrite)
    _check_base(source, base)
    opening, grids = _opening(source, base, settings, device)
    ids = _tokens(base, settings, device)
    training = Training(
        **{key: getattr(settings, key) for key in ("minutes", "steps", "rate", "batch", "seed")},
        resume=resume,
        device=device,
        progress=progress,
    )
    done = Retraining(
        original=base,
        target=source,
        opening=opening,
        tokens=ids[:-_HELD_OUT],
        training=training,
        name="recovering",
        task={"codes": settings.codes, "blocks": settings.blocks, "rank": settings.rank},
        blocks=_blocks(settings, grids),
        out=out,
        held_out=ids[-_HELD_OUT:],
    ).run()
    report = _report(source, base, out, grids, done)
    report.settings |= {"recovery": {**described, "steps": done.steps, "kl": [done.before, done.after]}}
    report.write(out)
    return report


def has_codes(source: Path) -> bool:
    """Return whether matrices of a folder are codes on grids."""
    checkpoint = Checkpoint.open(source)
    if (checkpoint.config.get("quantization_config") or {}).get("quant_method") == SPARSE:
        return any(name.endswith(".scales") for name in checkpoint.files)
    return bool(checkpoint.config.get("quantization_config"))


def _described(source: Path, base: Path, settings: RecoveringFolder) -> dict[str, Any]:
    """Return the settings for the report."""
    values = {key: value for key, value in values_of(settings).items() if value is not None}
    return {**values, "calibration": calibration_name(settings.calibration, base), "model": str(source)}


def _written(out: Path, described: Mapping[str, Any]) -> Report:
    """Return the report of a complete folder. Raises SqueezeError if it was made with other settings."""
    report = Report.read(out)
    recovery = report.settings.get("recovery")
    if not isinstance(recovery, dict) or any(
        recovery.get(key) != value for key, value in described.items() if key not in ("steps", "minutes")
    ):
        raise SqueezeError(other_settings(out))
    return report


def _check_base(source: Path, base: Path) -> None:
    """Raise SqueezeError if `base` is not a dense causal language model of the architecture of `source`, or if one of
    them is packed."""
    for path in (source, base):
        if (path / MANIFEST).is_file():
            raise SqueezeError(f"{path}: is packed: `squeeze unpack` it first")
    original, compressed = Checkpoint.open(base), Checkpoint.open(source)
    if original.config.get("quantization_config"):
        raise SqueezeError(f"{base}: is compressed itself: expected the dense original as `base`")
    for key in _SAME:
        own, other = (one.config.get(key) for one in (compressed, original))
        if own != other:
            raise SqueezeError(
                f"{base}: {key} is {printable(other)}, and {printable(own)} in {source}: name the model that it was "
                "made from"
            )
    if not is_causal(load_config(base)):
        raise ModelError(f"{base}: expected a causal language model, whose logits are learned")


def _opening(source: Path, base: Path, settings: RecoveringFolder, device: str) -> tuple[Opening, Grids | None]:
    """Return what is trained, and the weights on grids, if there are any.

    Raises SqueezeError if there is nothing to train, or an option does not fit.
    """
    grids = Grids.of(source, base, moves=settings.codes == MOVE)
    if grids.places:
        if settings.rank is not None:
            raise OptionError("`rank` is for sparse weights in floating point: codes are trained without adapters")
        return grids.opening(), grids
    if not has_codes(source) and settings.codes != MOVE and not settings.blocks:
        return sparse_opening(settings.rank, settings.seed, device), None
    reason = max(Counter(grids.left.values()).items(), key=lambda pair: pair[1], default=("they are dense", 0))[0]
    raise SqueezeError(f"{source}: none of its matrices can be trained: {reason}")


def _blocks(settings: RecoveringFolder, grids: Grids | None) -> float:
    if settings.blocks is not None:
        return settings.blocks
    return _BLOCKS if grids else 0.0


def _tokens(base: Path, settings: RecoveringFolder, device: str) -> torch.Tensor:
    """Return the calibration set and sequences that are held out, int64 [samples + _HELD_OUT, length]."""
    if isinstance(settings.calibration, torch.Tensor) and len(settings.calibration) <= _HELD_OUT:
        raise OptionError(f"`calibration` needs more than {_HELD_OUT} sequences: the last {_HELD_OUT} are held out")
    source, count = settings.calibration, settings.samples + _HELD_OUT
    size = count, settings.sequence_length, settings.seed
    ids = calibration_tokens(base, source, *size, device, settings.chat)  # type: ignore[arg-type]
    order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(settings.seed))
    return ids[order]


def _report(source: Path, base: Path, out: Path, grids: Grids | None, done: Healing) -> Report:
    """Return the report of the new folder: that of the old one, if it has one, with new sizes and remarks."""
    original, written = Checkpoint.open(base), Checkpoint.open(out)
    if (source / REPORT).is_file():
        report = Report.read(source)
        report.layers = [replace(layer, error=None, histogram={}) for layer in report.layers]  # of other scales
        report.before = report.after = report.packed = None
        report.tasks, report.outputs = [], []
    else:
        method = str((written.config.get("quantization_config") or {}).get("quant_method"))
        report = Report(str(base), str(out), "recover", method, {}, _layers(grids))
        report.parameters = sum(torch.Size(original.info(name).shape).numel() for name in original.files)
        report.raw_bytes = original.bytes_of(original.files)
    report.source, report.target = str(base), str(out)
    report.stored_bytes = written.bytes_of(written.files)
    report.seconds = round(report.seconds + done.seconds, 3)
    gap = f"{done.before:.4g} before, {done.after:.4g} after {done.steps} steps"
    report.notes.append(f"KL from the original on {_HELD_OUT} held-out sequences, nats a token: {gap}")
    if grids and grids.left:
        name, reason = next(iter(grids.left.items()))
        report.notes.append(f"{len(grids.left)} matrices of codes were not trained, such as {name}: {reason}")
    return report


def _layers(grids: Grids | None) -> list[Layer]:
    """Return a row for each trained matrix of a folder without a report."""
    layers = []
    for module in grids.places if grids else ():
        weight = grids.weight(module) if grids else None
        assert weight is not None
        bits = weight.stored_bits / (weight.shape[0] * weight.shape[1])
        layers.append(Layer(module, weight.shape, "recover", bits, None, 0))
    return layers
