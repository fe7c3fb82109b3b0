"""What can be done to a checkpoint, and the options that belong to no method.

Commands, recipes and functions all take these. Nothing here needs torch: `--help` reads it.
"""

from __future__ import annotations

from collections import ChainMap
from dataclasses import dataclass
from typing import TYPE_CHECKING

from squeeze.checkpoint.architectures import SHARED_EXPERTS
from squeeze.factor.methods import METHODS as FACTORISING, Share
from squeeze.options import MOST_MINUTES, Checked, Operation, Reference, option
from squeeze.prune.methods import METHODS as PRUNING
from squeeze.quant.methods import METHODS as QUANTISING

if TYPE_CHECKING:
    from pathlib import Path

    import torch

__all__ = [
    "DELTA",
    "FACTORIZE",
    "GGUF",
    "PACK",
    "PRUNE",
    "QUANTIZE",
    "RECOVER",
    "WHOLE",
    "Common",
    "Differing",
    "Factorizing",
    "MoDeGPT",
    "Packing",
    "Plan",
    "Pruning",
    "Quantizing",
    "Recovering",
]


GGUF = "gguf"  # the format that is a file
FULL = "full"  # rotations, with those of a running network
AUTO = "auto"  # its type that is chosen for each matrix


@dataclass(frozen=True, kw_only=True)
class Common(Checked):
    """What every operation takes that changes weights (engine/calibration.py, engine/pipeline.py)."""

    calibration: str | Path | torch.Tensor | None = option(
        None, "Text, .jsonl, a data set's name, or self, which the model writes and is the default."
    )
    samples: int = option(128, "Calibration sequences.", least=1)
    sequence_length: int = option(512, "Tokens of each of them.", least=2)
    bound: float | None = option(
        None, "A token counts as at most so many times the median one's square; 4 for GGUF's q3_k.", above=0
    )
    seed: int = option(0, "Seed of what is chosen at random.")
    ignore: tuple[str, ...] = option((), "Leave modules with this in their names; several are possible.")
    shared_experts: bool = option(False, "Also compress experts that see every token, which are left otherwise.")

    @property
    def left_alone(self) -> tuple[str, ...]:
        """Parts of the names of all that is left."""
        return self.ignore if self.shared_experts else (*self.ignore, *SHARED_EXPERTS)


@dataclass(frozen=True, kw_only=True)
class Quantizing(Checked):
    """What quantising takes beside a method's options."""

    rotate: bool | str = option(
        False,
        "Rotate a Llama-type network first (QuaRot's R1 and R2); full: also as it runs (R3, R4).",
        choices=(FULL,),
    )
    rotation_block: int | None = option(None, "Rotate in blocks of so many inputs.", least=2)
    smooth: float | None = option(
        None, "Scale inputs with this strength first (SmoothQuant); GPTQ's w8a8 begins with 0.5.", least=0, most=1
    )
    target_bits: float | None = option(None, "Choose bits by matrix: so many stored bits a weight in all.", above=0)
    target_bytes: int | None = option(
        None, "Or a whole checkpoint of this size.", least=1, unit="bytes", spelling="--target-size"
    )
    correction: float = option(0.3, "How far a matrix makes up for earlier errors.", least=0, most=1)
    format: str = option("compressed-tensors", "How it is stored.")
    scheme: str | None = option(
        None,
        "Of compressed-tensors, as llm-compressor names them: grids of weights and of activations.",
        choices=(
            *("w8a8", "fp8_dynamic", "fp8_block", "fp8", "nvfp4", "nvfp4a16", "mxfp4", "mxfp4a16", "w4a8", "w4a16"),
            *("w4a16_asym", "w8a16"),
        ),
    )
    kv_scheme: str | None = option(
        None, "Scales of the KV cache from the calibration, for a server that keeps it so.", choices=("fp8",)
    )
    type: str | None = option(
        None,
        "Of the blocks of the format gguf, q4_k by default; auto chooses one for each matrix within --target-size.",
        choices=(
            *("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "iq4_nl", "mxfp4", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k"),
            *("tq1_0", "tq2_0", AUTO),
        ),
    )


@dataclass(frozen=True, kw_only=True)
class Pruning(Checked):
    """What pruning takes beside a method's options."""

    bits: int | None = option(None, "Also quantise the weights kept, in the same pass.", least=2, most=8)
    group_size: int = option(128, "Inputs that share a scale; -1 for all of a row.")
    slim: bool = option(False, "Add low-rank adapters, quantised too (SLiM).")
    dense: bool = option(False, "Store zeros like all else, for any loader.")
    permute: bool = option(False, "Reorder channels first, which keeps the function.")
    correction: float = option(0.3, "How far a matrix makes up for earlier errors.", least=0, most=1)
    recover: float = option(0.0, "Minutes of training afterwards.", least=0)


@dataclass(frozen=True, kw_only=True)
class Factorizing(Checked):
    """What factorising takes beside a method's options."""

    outliers: int = option(0, "Entries of each matrix kept as they are.", least=0)
    bits: int | None = option(None, "Quantise the factors, too, with GPTQ.", least=2, most=8)
    group_size: int = option(64, "Inputs that share a scale; -1 for all of a row.")
    correction: float = option(0.5, "How far a matrix makes up for earlier errors.", least=0, most=1)
    heal: float = option(0.0, "Minutes of fine-tuning the factors afterwards.", least=0)


@dataclass(frozen=True, kw_only=True)
class Differing(Common):
    """What becomes of the difference of a fine-tune from its base (prune/delta/method.py)."""

    bits: int | None = option(None, "Of a code of the difference.", least=2, most=8)
    pattern: str | None = option(None, "Prune the difference: N:M such as 2:4, a share, or units as 16x50%.")
    group_size: int = option(128, "Inputs that share a scale; -1 for all of a row.")
    embedding_bits: float | None = option(
        None,
        "Of a weight's difference in embeddings and heads; without, as many as --bits. 0 keeps them exactly.",
        least=0,
    )
    correction: float = option(0.3, "How far a matrix makes up for earlier errors.", least=0, most=1)


@dataclass(frozen=True, kw_only=True)
class Recovering(Checked):
    """Training of what is left after pruning (recipes/train/retrain.py)."""

    minutes: float = option(20.0, "Minutes of training, at most.", least=0, most=MOST_MINUTES)
    steps: int | None = option(None, "Or so many steps.", least=1)
    rank: int | None = option(
        None, "Rank of what is added to each matrix; without, all weights kept are trained.", least=1
    )
    rate: float | None = option(None, "Largest step size of Adam; without, one that suits the damage.", above=0)
    batch: int = option(1, "Sequences a step.", least=1)


@dataclass(frozen=True, kw_only=True)
class Packing(Checked):
    """What packing takes (packing/pack.py)."""

    level: str = option(
        "runtime",
        "fast, for checkpoints written often; runtime decodes fast, on GPUs too; archive is smallest, and slow.",
        choices=("fast", "runtime", "archive"),
    )
    verify: bool = option(True, "Decode each tensor again to prove it.")
    strict: bool = option(False, "Refuse a folder of which something would be left out.")
    base: Path | str | None = option(None, "The checkpoint that this one differs from, packed or not.")
    max_chain: int = option(16, "Differences of differences; after so many a checkpoint is packed whole.", least=1)


@dataclass(frozen=True, kw_only=True)
class Plan(Share):
    """A family and rank for each matrix, chosen within a share or a size (recipes/plan/plan.py)."""

    target_bytes: int | None = option(
        None, "Or a whole checkpoint of this size.", least=1, unit="bytes", spelling="--target-size"
    )
    families: tuple[str, ...] = option((), "Other methods that the plan tries, such as tt,monarch; slow.")
    pairs: bool = option(True, "Leave out channels between matrices, too.")


@dataclass(frozen=True, kw_only=True)
class MoDeGPT(Share):
    """Every block smaller by one ratio (recipes/plan/modegpt.py)."""


WHOLE: dict[str, Reference] = {"plan": Plan, "modegpt": MoDeGPT}  # look at the model as a whole

QUANTIZE = Operation("quantize", Quantizing, QUANTISING, "gptq")
PRUNE = Operation("prune", Pruning, PRUNING, "sparsegpt")
FACTORIZE = Operation("factorize", Factorizing, ChainMap(FACTORISING, WHOLE), "plan")
DELTA = Operation("delta", Differing)
RECOVER = Operation("recover", Recovering)
PACK = Operation("pack", Packing)
