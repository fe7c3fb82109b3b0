"""Quantise a folder with llm-compressor on the same calibration tokens, for the benchmark `quantize`.

This program runs in an environment of its own, made with `pip install llmcompressor`. Tokens are int64 [N, L]. Static
activation order and damping of 1 % are llm-compressor's defaults. It computes in float32, as squeeze does.
"""

import argparse

import numpy as np
import torch
from llmcompressor import oneshot
from llmcompressor.modifiers.quantization import GPTQModifier
from transformers import AutoModelForCausalLM


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("tokens")
    parser.add_argument("out")
    parser.add_argument("--bits", type=int, default=4)
    parser.add_argument("--group-size", type=int, default=64)
    parser.add_argument("--asym", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    tokens = torch.from_numpy(np.load(args.tokens))
    samples = [{"input_ids": ids[None], "attention_mask": torch.ones_like(ids)[None]} for ids in tokens]
    weights = {"num_bits": args.bits, "type": "int", "symmetric": not args.asym, "strategy": "group"}
    weights["group_size"] = args.group_size
    groups = {"all": {"targets": ["Linear"], "weights": weights}}
    recipe = [GPTQModifier(ignore=["lm_head"], dampening_frac=0.01, config_groups=groups)]
    model = AutoModelForCausalLM.from_pretrained(args.folder, dtype=torch.float32)
    loader = torch.utils.data.DataLoader(samples, batch_size=None)
    oneshot(model=model, dataset=loader, recipe=recipe, num_calibration_samples=len(samples), pipeline="sequential")
    model.save_pretrained(args.out, save_compressed=True)


if __name__ == "__main__":
    main()
