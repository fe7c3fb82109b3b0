"""Train the sensitivity predictor, and print how well it ranks matrices of held-out blocks.

The damage of a matrix is the KL divergence of SmolLM2-135M on 128 tokens if 70 % of that matrix's values are kept. Each
is added to WORK/damage.json. Training uses the blocks of all folds except one. The output is rank correlations with the
damage on held-out blocks. `spectral energy` is the usual heuristic, the share of energy beyond the rank.
"""

import argparse
import json
import os
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from squeeze.engine.network import weight_of
from squeeze.factor import sensitivity
from squeeze.factor.sensitivity import Example, spearman
from squeeze.integrations.gguf.import_ import import_gguf
from squeeze.integrations.load_model import load_model
from squeeze.lm.models import HELP, bundled_path
from squeeze.recipes.tokens import calibration_tokens

TINY_STEPS = 400
STRIDE = 37  # without a divisor in common with the number of matrices, so that any first N lie all over the model


def measured(args: argparse.Namespace, folder: Path) -> tuple[list[Example], dict[str, float]]:
    """Return examples with their damages, and the heuristic's values by name."""
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


def tiny(number: int) -> list[Example]:
    """Return the matrices of a Llama of about ten thousand weights after a short training on bytes.

    The number chooses its width and depth.
    """
    text = (Path(os.environ["SQUEEZE_CORPUS"]) / "text" / "wiki.calibration.raw").read_bytes()
    ids = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    width = (64, 48, 80)[number % 3]
    torch.manual_seed(number)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=width,
        intermediate_size=5 * width // 2,
        num_hidden_layers=3 + number % 3,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    model = LlamaForCausalLM(config)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(TINY_STEPS):
        starts = torch.randint(0, len(ids) - 128, (8,))
        batch = torch.stack([ids[start : start + 128] for start in starts])
        model(batch, labels=batch).loss.backward()
        optimiser.step()
        optimiser.zero_grad()
    model.eval().requires_grad_(False)
    names = [name for name, module in model.named_modules() if isinstance(module, nn.Linear) and "layers" in name]
    tokens = ids[: 24 * 128].view(24, 128)
    moments = sensitivity.input_moments(model, tokens[:16], names)
    damage = sensitivity.measure(model, tokens[16:], names, moments)
    given = sensitivity.examples(model, names, moments)
    return [replace(one, damage=damage[one.name], model=f"tiny {number}") for one in given]


def main() -> None:
    parser = argparse.ArgumentParser("python -m training.sensitivity", description=__doc__)
    parser.add_argument("work", type=Path, help="folder for the model and the measured damages")
    parser.add_argument("--matrices", type=int, default=120, help="number of matrices to measure, default: 120")
    parser.add_argument("--folds", type=int, default=3, help="number of folds, default: 3")
    parser.add_argument(
        "--tiny", type=int, default=0, metavar="N", help="number of tiny models to add to the training set, default: 0"
    )
    parser.add_argument("--steps", type=int, default=300, help="training steps, default: 300")
    parser.add_argument("--write", action="store_true", help="train on all blocks, and replace the package's weights")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.work.mkdir(exist_ok=True, parents=True)
    folder = options.work / "original"
    if not folder.is_dir():
        source = bundled_path()
        if source is None:
            raise SystemExit(f"Error: the bundled model is not installed: {HELP}")
        import_gguf(source, folder)
    given, plain = measured(options, folder)
    others = [one for number in range(options.tiny) for one in tiny(number)]
    for fold in range(options.folds):
        training, unseen = (
            [one for one in given if (one.layer % options.folds == fold) == out] for out in (False, True)
        )
        ways = {"spectral energy": plain, "this model": sensitivity.train(training, options.steps).predict(unseen)}
        if others:
            ways["with tiny models"] = sensitivity.train([*training, *others], options.steps).predict(unseen)
            ways["tiny models alone"] = sensitivity.train(others, options.steps).predict(unseen)
        damage = [one.damage for one in unseen]
        for way, values in ways.items():
            print(f"fold {fold + 1}: {way} {spearman([values[one.name] for one in unseen], damage):.3f}", flush=True)
    if options.write:
        sensitivity.train([*given, *others], options.steps).save(sensitivity.WEIGHTS)


if __name__ == "__main__":
    main()
