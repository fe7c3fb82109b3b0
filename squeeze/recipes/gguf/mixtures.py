"""llama-quantize's mixtures of block types, such as Q4_K_M: more bits for the matrices whose errors cost most.

The rules are llama.cpp's (src/llama-quant.cpp), with a calibrated method counted as one with an importance matrix.
Embedding and head follow quant/blocks.py.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from squeeze.quant.method import GridMethod

__all__ = ["BASES", "Place", "methods_of", "type_of_place"]

BASES = {  # the type of most matrices of a mixture, by its name
    **{"Q2_K": "q2_k", "Q2_K_S": "q2_k", "Q3_K_S": "q3_k", "Q3_K_M": "q3_k", "Q3_K_L": "q3_k"},
    **{"Q4_K_S": "q4_k", "Q4_K_M": "q4_k", "Q5_K_S": "q5_k", "Q5_K_M": "q5_k", "Q6_K": "q6_k"},
    **{"Q4_0": "q4_0", "Q4_1": "q4_1", "Q5_0": "q5_0", "Q5_1": "q5_1", "Q8_0": "q8_0"},
    **{"IQ4_NL": "iq4_nl", "IQ4_XS": "iq4_xs", "IQ3_S": "iq3_s", "IQ3_M": "iq3_s", "IQ3_XS": "iq3_s"},
    **{"IQ3_XXS": "iq3_xxs", "IQ2_M": "iq2_s", "IQ2_S": "iq2_xs", "IQ2_XS": "iq2_xs", "IQ2_XXS": "iq2_xxs"},
}
_BLOCK = re.compile(r"blk\.(\d+)\.(\w+?)(?:_exps|_shexp)?\.weight$")
_MANY = 8  # experts from which attention is small beside them
_FULL_SIZE = 80  # blocks of models of 70 billion weights
_RAISED = (  # whose attention has more bits beside many experts
    *("Q2_K", "Q3_K_S", "Q3_K_M", "Q4_K_S", "Q4_K_M", "IQ4_NL", "IQ4_XS", "IQ3_S", "IQ3_M", "IQ3_XS", "IQ3_XXS"),
)
_TWO_BITS = {"IQ2_XXS": "q2_k", "IQ2_XS": "q2_k", "IQ2_S": "iq3_s", "IQ2_M": "iq3_s"}  # and where they have more bits


@dataclass(frozen=True)
class Place:
    """A matrix in a model: its name in GGUF without block and suffix, its block, and facts of the model.

    `shared_heads` are the query heads of a key-value head, and `calibrated` says whether inputs were seen.
    """

    kind: str
    block: int
    blocks: int
    shared_heads: int = 1
    experts: int = 0
    calibrated: bool = True

    @property
    def is_early(self) -> bool:
        return self.block < self.blocks // 8

    @property
    def is_between(self) -> bool:
        """True between the first and the last eighth of the blocks."""
        return not self.is_early and self.block < 7 * self.blocks // 8

    @property
    def has_more_bits(self) -> bool:
        """True in the first and last eighth of the blocks, and in each third block between them."""
        eighth = self.blocks // 8
        return not self.is_between or (self.block - eighth) % 3 == 2


def type_of_place(mixture: str, place: Place) -> str:
    """Return the block type of a matrix, before fallbacks for rows that are not whole blocks."""
    base = BASES[mixture]
    if mixture in _TWO_BITS:
        return _of_two_bits(mixture, place, base)
    if place.kind == "attn_v":
        return _of_values(mixture, place, base)
    if place.kind == "attn_k" and place.experts == _MANY:
        return "q8_0"
    if place.kind == "ffn_down":
        return _of_down(mixture, place, base)
    if place.kind == "attn_output":
        return _of_attention(mixture, place, base)
    if place.kind in ("attn_q", "attn_k"):
        return {"IQ3_XS": "iq3_xxs", "IQ3_XXS": "iq2_s"}.get(mixture, base)
    if place.kind in ("ffn_gate", "ffn_up") and mixture == "IQ3_XS" and place.is_between:
        return "iq3_xxs"
    return base


def _of_two_bits(mixture: str, place: Place, base: str) -> str:
    more = _TWO_BITS[mixture]
    if place.kind == "attn_v":
        return "q4_k" if place.shared_heads >= 4 or place.experts >= 4 else more
    if place.kind == "attn_k" and place.experts == _MANY:
        return "q4_k"
    if place.kind == "attn_output":
        return "q5_k" if place.experts == _MANY else more if more == "iq3_s" else base
    return more if place.kind == "ffn_down" and place.is_early else base


def _of_attention(mixture: str, place: Place, base: str) -> str:
    """Return the type of the matrix after attention."""
    if place.experts == _MANY:
        return "q5_k" if mixture in _RAISED else base
    others = {"Q2_K": "q3_k", "Q3_K_M": "q4_k", "Q3_K_L": "q5_k", "IQ3_M": "q4_k", "IQ3_XXS": "iq3_s"}
    return others.get(mixture, base)


def _of_values(mixture: str, place: Place, base: str) -> str:
    shares, kind = place.shared_heads >= 4, base
    if mixture == "Q2_K":
        kind = "q4_k" if shares else "q3_k"
    elif mixture == "IQ3_M" or (mixture in ("Q2_K_S", "IQ3_S", "IQ3_XS", "IQ3_XXS") and shares):
        kind = "q4_k"
    elif mixture == "IQ3_XXS" and not place.calibrated:
        kind = "iq3_s"
    elif mixture == "Q3_K_M":
        kind = "q5_k" if place.block < 2 else "q4_k"
    elif mixture == "Q3_K_L" or (mixture in ("IQ4_NL", "IQ4_XS") and shares):
        kind = "q5_k"
    elif mixture in ("Q4_K_M", "Q5_K_M") and place.has_more_bits:
        kind = "q6_k"
    elif mixture == "Q4_K_S" and place.block < 4:
        kind = "q5_k"
    if place.blocks == _FULL_SIZE and place.shared_heads > 1 and kind in ("q3_k", "q4_k"):
        kind = "q5_k"
    return "q8_0" if place.experts == _MANY else kind


def _of_down(mixture: str, place: Place, base: str) -> str:
    if mixture in ("Q2_K", "Q3_K_L"):
        return {"Q2_K": "q3_k", "Q3_K_L": "q5_k"}[mixture]
    if mixture == "Q3_K_M":
        return "q5_k" if place.block < place.blocks // 16 else "q4_k"
    if mixture in ("Q4_K_M", "Q5_K_M"):
        return "q6_k" if place.has_more_bits else base
    if mixture == "IQ3_XXS" and not place.calibrated:
        return "q4_k" if place.is_early else "q3_k"
    if mixture == "IQ3_M" and place.experts == _MANY:
        return "q4_k" if place.has_more_bits else base
    if not place.is_early:
        return base
    if mixture in ("IQ4_NL", "IQ4_XS"):
        return base if place.calibrated else "q5_k"
    early = {"Q2_K_S": "q4_k", "Q4_K_S": "q5_k", "IQ3_M": "q4_k"}
    if place.calibrated:
        early |= {"Q4_0": "q4_1", "Q5_0": "q5_1"}
    return early.get(mixture, base)


def methods_of(
    mixture: str, method: GridMethod, named: Mapping[str, Iterable[str]], config: Mapping[str, Any]
) -> dict[str, GridMethod]:
    """Return the methods of matrices that differ from the common one, by the checkpoint's module name.

    Args:
        mixture: a name in BASES.
        method: the common method, on the mixture's most frequent type.
        named: the checkpoint's tensors that each tensor of the file is made of.
        config: the model's configuration.
    """
    blocks, heads = int(config["num_hidden_layers"]), int(config["num_attention_heads"])
    shared = heads // max(int(config.get("num_key_value_heads") or heads), 1)
    experts = int(config.get("num_local_experts") or config.get("num_experts") or 0)
    found: dict[str, GridMethod] = {}
    for name, sources in named.items():
        if match := _BLOCK.match(name):
            place = Place(match[2], int(match[1]), blocks, shared, experts, method.needs_hessian)
            kind = type_of_place(mixture, place)
            if kind != method.grid:
                found |= {source.removesuffix(".weight"): method.replaced(grid=kind) for source in sources}
    return found
