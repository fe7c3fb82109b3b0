"""How well the sensitivity predictor orders matrices of blocks that it has not seen; and the weights that ship.

SQUEEZE_CORPUS=CORPUS python bench/sensitivity.py WORK [--matrices 120] [--folds 3] [--write]

Measures the damage of single matrices of the bundled SmolLM2-135M when 70 % of their values are kept (KL divergence
from the model on 128 tokens), adds each to WORK/damage.json, and trains on the blocks of all folds but one. Prints the
rank correlation with what was measured on the blocks left out, beside that of the plain heuristic, the share of energy
beyond the rank. --write trains on all of them and replaces squeeze/model/sensitivity.safetensors.
"""

import argparse
import json
import os
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from squeeze.lm.models import bundled_path
from squeeze.model import sensitivity
from squeeze.model.calibration import calibration_tokens
from squeeze.model.evaluate import load_model
from squeeze.model.gguf import import_gguf
from squeeze.model.network import weight_of
from squeeze.model.sensitivity import Example, spearman

STRIDE = 37  # without a divisor in common with the number of matrices, so that any first N lie all over the model


def measured(args: argparse.Namespace, folder: Path) -> tuple[list[Example], dict[str, float]]:
    """Examples with their damages, and the heuristic's values by name."""
    log = args.work / "damage.json"
    found: dict[str, float] = json.loads(log.read_text()) if log.is_file() else {}
    text = Path(os.environ["SQUEEZE_CORPUS"]) / "text" / "wiki.calibration.raw"
    tokens = calibration_tokens(folder, text, 10, 256, 0)
    model = load_model(folder).requires_grad_(False)
    names = [
        name for name, module in model.named_modules() if isinstance(module, nn.Linear) and name.startswith("model.")
    ]
    moments = sensitivity.input_moments(model, tokens[:9], names)
    chosen = [names[STRIDE * i % len(names)] for i in range(min(args.matrices, len(names)))]
    for name in chosen:
        if name not in found:
            found |= sensitivity.measure(model, tokens[9:, :128], [name], moments)
            log.write_text(json.dumps(found, indent=1))
    given = sensitivity.examples(model, chosen, moments)
    plain = {name: sensitivity.spectral(weight_of(model.get_submodule(name))) for name in chosen}
    return [replace(one, damage=found[one.name]) for one in given], plain


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("work", type=Path)
    parser.add_argument("--matrices", type=int, default=120)
    parser.add_argument("--folds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.work.mkdir(exist_ok=True, parents=True)
    folder = args.work / "original"
    if not folder.is_dir():
        import_gguf(bundled_path(), folder)
    given, plain = measured(args, folder)
    print(f"{len(given)} matrices; every {args.folds}th block is left out of the training")
    for fold in range(args.folds):
        seen, unseen = ([one for one in given if (one.layer % args.folds == fold) == out] for out in (False, True))
        found = sensitivity.train(seen, args.steps).predict(unseen)
        damage = [one.damage for one in unseen]
        ours, theirs = (spearman([values[one.name] for one in unseen], damage) for values in (found, plain))
        print(f"fold {fold}: Spearman {ours:.3f}, spectral energy {theirs:.3f} ({len(unseen)} matrices)", flush=True)
    if args.write:
        sensitivity.train(given, args.steps).save(sensitivity.WEIGHTS)


if __name__ == "__main__":
    main()
