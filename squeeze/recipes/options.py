"""Options of the operations on checkpoints, other than those of a method.

Commands, recipes and functions all take these. Nothing here imports torch, because `--help` reads it.
"""

from __future__ import annotations

from collections import ChainMap
from dataclasses import dataclass
from typing import TYPE_CHECKING

from squeeze.checkpoint.architectures import SHARED_EXPERTS
from squeeze.factor.methods import METHODS as FACTORISING, Share
from squeeze.operations import Operation
from squeeze.options import MOST_MINUTES, Checked, Reference, option
from squeeze.prune.experts.methods import METHODS as REDUCING
from squeeze.prune.methods import METHODS as PRUNING
from squeeze.quant.methods import METHODS as QUANTISING

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from squeeze.engine.inputs import Samples

__all__ = [
    "DELTA",
    "EXPERTS",
    "FACTORIZE",
    "GGUF",
    "PACK",
    "PRUNE",
    "QUANTIZE",
    "RECOVER",
    "RECOVER_FOLDER",
    "WHOLE",
    "Calibrating",
    "Common",
    "Differing",
    "Factorizing",
    "MoDeGPT",
    "Packing",
    "Plan",
    "Pruning",
    "Quantizing",
    "Recovering",
    "RecoveringFolder",
    "Reducing",
]


GGUF = "gguf"  # the format that is a file
FULL = "full"  # rotations, with those of a running network
PEFT = "peft"  # the format of adapters
FIXED, MOVE = "fixed", "move"  # codes of quantised weights in training
AUTO = "auto"  # its type that is chosen for each matrix
SAME = "same"  # its types that hold the codes of a quantised folder
MIXTURES = (  # llama-quantize's (recipes/gguf/mixtures.py)
    *("Q2_K", "Q2_K_S", "Q3_K_S", "Q3_K_M", "Q3_K_L", "Q4_K_S", "Q4_K_M", "Q5_K_S", "Q5_K_M", "Q6_K"),
    *("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "IQ4_XS", "IQ3_S", "IQ3_M", "IQ3_XS", "IQ3_XXS"),
    *("IQ2_M", "IQ2_S", "IQ2_XS", "IQ2_XXS"),
)


@dataclass(frozen=True, kw_only=True)
class Calibrating(Checked):
    """Options of the calibration set (engine/calibration.py)."""

    calibration: str | Path | torch.Tensor | Samples | None = option(
        None,
        "Calibration text: file, data set's name, built-in, or self (the model writes it); default: built-in, self "
        "without a tokenizer. For other models a text, an .npz file, or a folder of images or WAV files",
    )
    chat: bool = option(False, "Conversations of the calibration text in the model's chat template")
    samples: int = option(128, "Number of calibration sequences", least=1)
    sequence_length: int = option(512, "Tokens per calibration sequence", least=2)
    seed: int = option(0, "Random seed")


@dataclass(frozen=True, kw_only=True)
class Common(Calibrating):
    """Options of every operation that changes weights (engine/pipeline.py)."""

    bound: float | None = option(
        None, "Clip of each token's weight in the Hessian, at X times the median; default: none, 4 for q3_k", above=0
    )
    ignore: tuple[str, ...] = option((), "Modules to leave unchanged, by a part of their names, separated by commas")
    shared_experts: bool = option(False, "Compress shared experts, which see every token, too")

    @property
    def all_ignored(self) -> tuple[str, ...]:
        """Parts of the names of all modules that are left alone."""
        return self.ignore if self.shared_experts else (*self.ignore, *SHARED_EXPERTS)


@dataclass(frozen=True, kw_only=True)
class Quantizing(Checked):
    """Options of quantising, other than a method's."""

    rotate: bool | str = option(
        False,
        "Hadamard rotation (QuaRot R1 and R2); full: also at run time (R3 and R4)",
        choices=(FULL,),
    )
    rotation_block: int | None = option(None, "Inputs per block of the rotation; default: all (--rotate only)", least=2)
    smooth: float | None = option(
        None, "SmoothQuant strength, 0 to 1; default: none, 0.5 for gptq with --scheme w8a8", least=0, most=1
    )
    target_bits: float | None = option(
        None, "Average of stored bits per weight; chooses the bits of each matrix", above=0
    )
    target_bytes: int | None = option(
        None,
        "Size of the whole checkpoint, such as 600M; chooses the bits of each matrix",
        least=1,
        unit="bytes",
        spelling="--target-size",
    )
    embeddings: int | None = option(
        None, "Bits of the input embedding, 16 to leave it as it is; default: 16", numbers=(4, 8, 16)
    )
    head: int | None = option(None, "Bits of the output head, 16 to leave it as it is; default: 16", numbers=(4, 8, 16))
    correction: float = option(0.3, "Strength of the correction for errors of earlier layers, 0 to 1", least=0, most=1)
    format: str = option(
        "compressed-tensors",
        "Storage: compressed-tensors, gptq, gptq_v2, awq, bitsandbytes, squeeze (for whole4), dense, gguf",
    )
    scheme: str | None = option(
        None,
        "Preset by its name in llm-compressor, or whole4: all weights in 4 bits",
        choices=(
            *("w8a8", "fp8_dynamic", "fp8_block", "fp8", "nvfp4", "nvfp4a16", "mxfp4", "mxfp4a16", "w4a8", "w4a16"),
            *("w4a16_asym", "w8a16", "whole4"),
        ),
    )
    kv_scheme: str | None = option(
        None, "Format of the server's KV cache; its scales come from the calibration", choices=("fp8",)
    )
    type: str | None = option(
        None,
        "Block type, or mixture in capitals; auto: by --target-size, same: by stored codes; default: q4_k (gguf only)",
        choices=(
            *("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "iq4_nl", "iq4_xs", "mxfp4", "q2_k", "q3_k", "q4_k", "q5_k"),
            *("q6_k", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "tq1_0", "tq2_0", *MIXTURES, AUTO, SAME),
        ),
    )


@dataclass(frozen=True, kw_only=True)
class Pruning(Checked):
    """Options of pruning, other than a method's."""

    bits: int | None = option(None, "Bits per kept weight; quantises them in the same pass", least=2, most=8)
    group_size: int = option(128, "Inputs per scale, -1 for a whole row (--bits only)")
    slim: bool = option(False, "Add quantised low-rank adapters (SLiM)")
    dense: bool = option(False, "Store zeros as well, for loaders without sparse formats")
    permute: bool = option(False, "Reorder channels before pruning; the model computes the same function")
    correction: float = option(0.3, "Strength of the correction for errors of earlier layers, 0 to 1", least=0, most=1)
    recover: float = option(0.0, "Training time after pruning, in minutes", least=0)


@dataclass(frozen=True, kw_only=True)
class Reducing(Checked):
    """Options of reducing a mixture of experts, other than a method's."""

    keep: float | None = option(None, "Share of each layer's experts to keep; default: all", above=0, most=1)
    active: int | None = option(None, "Experts that a token uses; default: as many as before", least=1)


@dataclass(frozen=True, kw_only=True)
class Factorizing(Checked):
    """Options of factorising, other than a method's."""

    outliers: int = option(0, "Entries of each matrix kept exact", least=0)
    bits: int | None = option(None, "Bits per value of the factors; quantises them with GPTQ", least=2, most=8)
    group_size: int = option(64, "Inputs per scale, -1 for a whole row (--bits only)")
    correction: float = option(0.5, "Strength of the correction for errors of earlier layers, 0 to 1", least=0, most=1)
    heal: float = option(0.0, "Fine-tuning time of the factors, in minutes", least=0)


@dataclass(frozen=True, kw_only=True)
class Differing(Common):
    """Options of storing a fine-tune as its difference from a base (prune/delta/method.py)."""

    bits: int | None = option(None, "Bits per weight of the difference, or per value of an adapter", least=2, most=8)
    pattern: str | None = option(None, "Sparsity of the difference: 2:4, a share (50%) or units (16x50%)")
    group_size: int = option(128, "Inputs per scale, -1 for a whole row")
    embedding_bits: float | None = option(
        None,
        "Bits per weight of the difference in embeddings and heads, 0 for exact; default: --bits",
        least=0,
    )
    format: str = option(
        "squeeze", "Storage: squeeze, or peft for a LoRA adapter that peft and vLLM load", choices=("squeeze", PEFT)
    )
    rank: int | None = option(None, "Rank of the adapter's factors; default: 32 (peft only)", least=1)
    target_bytes: int | None = option(
        None,
        "Size of the adapter, such as 8M; chooses the rank of each matrix (peft only)",
        least=1,
        unit="bytes",
        spelling="--target-size",
    )
    correction: float = option(0.3, "Strength of the correction for errors of earlier layers, 0 to 1", least=0, most=1)


@dataclass(frozen=True, kw_only=True)
class Recovering(Checked):
    """Options of retraining what pruning kept (recipes/train/retrain.py), or weights on grids (recipes/recover.py)."""

    minutes: float = option(20.0, "Longest training time, in minutes", least=0, most=MOST_MINUTES)
    steps: int | None = option(None, "Largest number of training steps; default: no limit", least=1)
    codes: str = option(FIXED, "Codes of quantised weights: fixed, or move to neighbours", choices=(FIXED, MOVE))
    blocks: float | None = option(
        None, "Share of the time in which each block learns alone; default: 0.4 for quantised weights", least=0, most=1
    )
    rank: int | None = option(None, "Rank of trained adapters; default: none, all kept weights are trained", least=1)
    rate: float | None = option(None, "Peak learning rate of Adam; default: chosen from the damage", above=0)
    batch: int = option(1, "Sequences per step", least=1)


@dataclass(frozen=True, kw_only=True)
class RecoveringFolder(Calibrating, Recovering):
    """Options of `squeeze recover` (recipes/recover.py)."""


@dataclass(frozen=True, kw_only=True)
class Packing(Checked):
    """Options of packing (packing/pack.py)."""

    level: str = option(
        "runtime",
        "Speed or size: fast, runtime (fast decoding, also on GPUs) or archive (smallest)",
        choices=("fast", "runtime", "archive"),
    )
    verify: bool = option(True, "Decode each tensor again and compare")
    strict: bool = option(False, "Fail if a file of the folder would be left out")
    base: Path | str | None = option(None, "Base checkpoint that this one differs from, packed or not")
    max_chain: int = option(16, "Longest chain of differences; the next checkpoint is packed whole", least=1)


@dataclass(frozen=True, kw_only=True)
class Plan(Share):
    """Options of a plan, which chooses family and rank by matrix within a share or a size (recipes/plan/plan.py)."""

    target_bytes: int | None = option(
        None, "Size of the whole checkpoint, such as 600M", least=1, unit="bytes", spelling="--target-size"
    )
    families: tuple[str, ...] = option((), "Additional methods for the plan to try, such as tt,monarch (slow)")
    pairs: bool = option(True, "Remove channels between pairs of matrices, too")


@dataclass(frozen=True, kw_only=True)
class MoDeGPT(Share):
    """Options of shrinking every block by one ratio (recipes/plan/modegpt.py)."""


WHOLE: dict[str, Reference] = {"plan": Plan, "modegpt": MoDeGPT}  # look at the model as a whole

QUANTIZE = Operation("quantize", Quantizing, QUANTISING, "gptq")
PRUNE = Operation("prune", Pruning, PRUNING, "sparsegpt")
EXPERTS = Operation("experts", Reducing, REDUCING, "reap")
FACTORIZE = Operation("factorize", Factorizing, ChainMap(FACTORISING, WHOLE), "plan")
DELTA = Operation("delta", Differing)
RECOVER = Operation("recover", Recovering)  # the step of a recipe, whose calibration is the recipe's
RECOVER_FOLDER = Operation("recover", RecoveringFolder)
PACK = Operation("pack", Packing)
