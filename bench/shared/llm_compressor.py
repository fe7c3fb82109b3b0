"""Quantises a folder with llm-compressor on the same calibration tokens, for `quantize` and `schemes` to measure.

Runs as a program in an environment of its own, made with `pip install llmcompressor`; tokens are int64 [N, L]. Static
ordering of columns, 1 % of damping and half of what is smoothed, as llm-compressor has them without options. It
computes in float32, as squeeze does: bfloat16 is several times slower on a CPU, and rounds its scales, too.
"""

import argparse

import numpy as np
import torch
from compressed_tensors.quantization import preset_name_to_scheme
from llmcompressor import oneshot
from llmcompressor.modifiers.quantization import GPTQModifier, QuantizationModifier
from llmcompressor.modifiers.smoothquant import SmoothQuantModifier
from transformers import AutoModelForCausalLM


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("tokens")
    parser.add_argument("out")
    parser.add_argument("--bits", type=int, default=4)
    parser.add_argument("--group-size", type=int, default=64)
    parser.add_argument("--asym", action="store_true")
    parser.add_argument("--scheme", help="a preset's name, in place of bits and groups")
    parser.add_argument("--rtn", action="store_true", help="round to nearest, with whole ranges")
    parser.add_argument("--smooth", action="store_true", help="SmoothQuant before")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    tokens = torch.from_numpy(np.load(args.tokens))
    samples = [{"input_ids": ids[None], "attention_mask": torch.ones_like(ids)[None]} for ids in tokens]
    recipe = [SmoothQuantModifier()] if args.smooth else []
    recipe.append((QuantizationModifier if args.rtn else GPTQModifier)(**quantisation(args)))
    model = AutoModelForCausalLM.from_pretrained(args.folder, dtype=torch.float32)
    loader = torch.utils.data.DataLoader(samples, batch_size=None)
    oneshot(model=model, dataset=loader, recipe=recipe, num_calibration_samples=len(samples), pipeline="sequential")
    model.save_pretrained(args.out, save_compressed=True)


def quantisation(args: argparse.Namespace) -> dict:
    """The options of a modifier."""
    given = {"ignore": ["lm_head"]} if args.rtn else {"ignore": ["lm_head"], "dampening_frac": 0.01}
    if args.scheme:
        scheme = preset_name_to_scheme(args.scheme, ["Linear"])
        if scheme.weights.strategy == "group" and scheme.weights.type == "int":
            scheme.weights.group_size = args.group_size
        return {**given, "config_groups": {"all": scheme}}
    weights = {"num_bits": args.bits, "type": "int", "symmetric": not args.asym, "strategy": "group"}
    weights["group_size"] = args.group_size
    return {**given, "config_groups": {"all": {"targets": ["Linear"], "weights": weights}}}


if __name__ == "__main__":
    main()
