"""What a GGUF file says of a model besides its tensors, from config.json and the tokenizer's files.

The gguf package has the keys; which of them llama.cpp reads for an architecture is said here.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from squeeze.checkpoint.architectures import EMBEDDING, head_size
from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.errors import FormatError, ModelError, printable
from squeeze.lm import rotary
from squeeze.lm.gguf_vocabulary import Vocabulary, vocabulary_of
from squeeze.system.json_object import read_object

if TYPE_CHECKING:
    from gguf import GGUFWriter

__all__ = ["FAMILIES", "Family", "Metadata"]


_GELU = "gelu_pytorch_tanh"
_FULL, _LOCAL = "full_attention", "sliding_attention"


@dataclass(frozen=True)
class Family:
    """How llama.cpp has an architecture. name: of its network; interleaved: rotary pairs are neighbouring rows of
    queries and keys; experts: whether there are any; activation: the only one that it runs; shifted: a checkpoint's
    norms are stored less one, and a file's are not; period: the last of so many blocks attends to all tokens, and the
    others to those in a window; local_base: of rotary angles in these, where it is another."""

    name: str
    interleaved: bool = False
    experts: bool = False
    activation: str = "silu"
    shifted: bool = False
    period: int = 0
    local_base: float | None = None


FAMILIES = {  # by config.json's model_type
    "llama": Family("LLAMA", interleaved=True),
    "mistral": Family("LLAMA", interleaved=True),
    "mixtral": Family("LLAMA", interleaved=True, experts=True),
    "qwen2": Family("QWEN2"),
    "qwen3": Family("QWEN3"),
    "qwen3_moe": Family("QWEN3MOE", experts=True),
    "gemma2": Family("GEMMA2", activation=_GELU, shifted=True, period=2),
    "gemma3_text": Family("GEMMA3", activation=_GELU, shifted=True, period=6, local_base=10000.0),
}
_ROPE = ("default", "dynamic", "linear", "yarn", "llama3")  # dynamic scaling begins beyond the trained context


@dataclass(frozen=True)
class Metadata:
    """Of a model's folder that llama.cpp can run, which `of` has found."""

    folder: Path
    config: Mapping[str, Any]
    family: Family
    vocabulary: Vocabulary
    tokenizer: Mapping[str, Any]

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> "Metadata":
        """Raises ModelError for what llama.cpp has no words for, FormatError where something is missing."""
        folder, config, embedding = checkpoint.folder, checkpoint.config, f"{EMBEDDING}.weight"
        kind = config.get("model_type")
        if kind not in FAMILIES:
            known = ", ".join(FAMILIES)
            raise ModelError(
                f"{folder}: the architecture {printable(repr(kind))} cannot be written as GGUF, only {known}"
            )
        if not (folder / "tokenizer.json").is_file():
            raise FormatError(f"{folder}: has no tokenizer.json, and a GGUF file holds the tokenizer")
        if embedding not in checkpoint.files:
            raise FormatError(f"{folder}: the checkpoint has no tensor {embedding!r}")
        rows = checkpoint.info(embedding).shape[0]
        tokenizer = read_object(folder / "tokenizer.json")
        found = cls(folder, config, FAMILIES[str(kind)], vocabulary_of(str(folder), tokenizer, rows), tokenizer)
        found._check()
        return found

    def _check(self) -> None:
        rope, kind, kind_of = self._rope, self._rope_type, self.config["model_type"]
        reasons = {
            f"the activation {self._activation}": self._activation != self.family.activation,
            **self._faults_of_windows(),
            "sliding windows": bool(self.config.get("use_sliding_window")),
            "experts whose shares do not sum to 1": kind_of == "qwen3_moe" and not self.config.get("norm_topk_prob"),
            "blocks with and without experts": bool(self.config.get("mlp_only_layers"))
            or self.config.get("decoder_sparse_step", 1) != 1,
            "a rotary embedding of a part of each head": rope.get("partial_rotary_factor", 1.0) != 1,
            f"the rotary scaling {kind}": kind not in _ROPE,
            "YaRN with limits of its own": (rope.get("beta_fast") or rotary.BETA_FAST) != rotary.BETA_FAST
            or (rope.get("beta_slow") or rotary.BETA_SLOW) != rotary.BETA_SLOW
            or bool(rope.get("mscale")),
        }
        for reason, holds in reasons.items():
            if holds:
                raise ModelError(f"{self.folder}: cannot be written as GGUF: it has {printable(reason)}")
        try:
            assert self._sizes
            self.divisors()
        except KeyError as error:
            raise FormatError(f"{self.folder}: config.json does not say {error.args[0]}") from None

    @property
    def _activation(self) -> str:
        return str(self.config.get("hidden_activation") or self.config.get("hidden_act") or self.family.activation)

    def _faults_of_windows(self) -> dict[str, bool]:
        """Of an architecture with windows in some blocks: what llama.cpp has otherwise, and whether it is so."""
        period, config = self.family.period, self.config
        if not period:
            return {}
        wanted = [_LOCAL if (i + 1) % period else _FULL for i in range(int(config["num_hidden_layers"]))]
        local = self._rope_of(_LOCAL).get("rope_theta", config.get("rope_local_base_freq", self.family.local_base))
        return {
            f"windows in other blocks than {period - 1} of {period}": (config.get("layer_types") or wanted) != wanted,
            "another size of a window's pattern": config.get("sliding_window_pattern", period) != period,
            "queries that are scaled otherwise than by their size": float(
                config.get("query_pre_attn_scalar") or head_size(config)
            )
            != head_size(config),
            f"rotary angles of base {local} in windows": self.family.local_base not in (None, local),
            "attention in both directions": bool(config.get("use_bidirectional_attention")),
        }

    def _rope_of(self, kind: str) -> dict[str, Any]:
        """What is said of rotary angles in the blocks of a kind alone."""
        own = (self.config.get("rope_parameters") or {}).get(kind)
        return own if isinstance(own, dict) else {}

    @cached_property
    def _rope(self) -> dict[str, Any]:
        own = {key: self.config[key] for key in ("rope_theta", "partial_rotary_factor") if self.config.get(key)}
        told = {key: value for key, value in (self.config.get("rope_parameters") or {}).items() if key != _LOCAL}
        rope = {**told, **told.pop(_FULL, {}), **(self.config.get("rope_scaling") or {})}
        return {"rope_theta": 10000.0, **own, **rope}

    @property
    def _rope_type(self) -> str:
        return str(self._rope.get("rope_type") or self._rope.get("type") or "default")

    def heads(self, name: str) -> int:
        """Of one of the file's tensors, whose rows are to be interleaved; 0 for others."""
        leaf = name.rpartition(".")[0].rpartition(".")[2]
        if not self.family.interleaved or leaf not in ("attn_q", "attn_k"):
            return 0
        heads = int(self.config["num_attention_heads"])
        return heads if leaf == "attn_q" else int(self.config.get("num_key_value_heads") or heads)

    def shift(self, name: str) -> float:
        """What one of the file's tensors is more than the checkpoint's."""
        return 1.0 if self.family.shifted and name.endswith("norm.weight") else 0.0

    def divisors(self) -> np.ndarray | None:
        """float32, one for each rotary angle, where they are not all alike (Llama 3.1)."""
        if self._rope_type != "llama3":
            return None
        size, rope = head_size(self.config), self._rope
        factor, low, high = (float(rope[key]) for key in ("factor", "low_freq_factor", "high_freq_factor"))
        base, trained = float(rope["rope_theta"]), float(rope["original_max_position_embeddings"])
        scaled = rotary.llama3(base, size, factor, low, high, trained)
        return np.divide(rotary.plain(base, size), scaled).astype(np.float32)

    def write(self, writer: "GGUFWriter", name: str, file_type: int) -> None:
        """Add all keys. name: of the model; file_type: llama.cpp's number of the type of most matrices."""
        import gguf

        writer.add_name(name)
        writer.add_file_type(file_type)
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
        for key, value in self._sizes.items():
            getattr(writer, f"add_{key}")(value)
        if self.family.period:
            self._windows(writer)
        self._rotary(writer)
        self._tokens(writer)

    def _windows(self, writer: "GGUFWriter") -> None:
        writer.add_sliding_window(int(self.config["sliding_window"]))
        if (cap := self.config.get("attn_logit_softcapping")) is not None:
            writer.add_attn_logit_softcapping(float(cap))
        if (cap := self.config.get("final_logit_softcapping")) is not None:
            writer.add_final_logit_softcapping(float(cap))

    @cached_property
    def _sizes(self) -> dict[str, int | float]:
        """What the gguf package's writer has a method add_NAME for."""
        config = self.config
        heads, size = int(config["num_attention_heads"]), head_size(config)
        sizes: dict[str, int | float] = {
            "block_count": int(config["num_hidden_layers"]),
            "context_length": int(config["max_position_embeddings"]),
            "embedding_length": int(config["hidden_size"]),
            "feed_forward_length": int(config["intermediate_size"]),
            "head_count": heads,
            "head_count_kv": int(config.get("num_key_value_heads") or heads),
            "key_length": size,
            "value_length": size,
            "layer_norm_rms_eps": float(config["rms_norm_eps"]),
            "vocab_size": len(self.vocabulary.tokens),
            "rope_dimension_count": size,
            "rope_freq_base": float(self._rope["rope_theta"]),
        }
        if self.family.experts:
            count = config.get("num_local_experts") or config["num_experts"]
            width = config.get("moe_intermediate_size") or config["intermediate_size"]
            sizes |= {"expert_count": int(count), "expert_used_count": int(config["num_experts_per_tok"])}
            sizes["expert_feed_forward_length"] = int(width)
        return sizes

    def _rotary(self, writer: "GGUFWriter") -> None:
        import gguf

        rope = self._rope
        if self._rope_type not in ("linear", "yarn"):
            return
        factor, trained = float(rope["factor"]), rope.get("original_max_position_embeddings")
        writer.add_rope_scaling_type(gguf.RopeScalingType(self._rope_type))
        writer.add_rope_scaling_factor(factor)
        if self._rope_type == "yarn":
            writer.add_rope_scaling_orig_ctx_len(int(trained or self.config["max_position_embeddings"]))
            if (scale := rope.get("attention_factor")) is not None:  # llama.cpp multiplies YaRN's own with it
                writer.add_rope_scaling_attn_factors(float(scale) / rotary.yarn_scale(factor))

    def _tokens(self, writer: "GGUFWriter") -> None:
        import gguf

        words = self.vocabulary
        logging.getLogger("gguf.vocab").setLevel(logging.ERROR)
        special = gguf.SpecialVocab(self.folder, load_merges=words.scores is None, n_vocab=len(words.tokens))
        start = special.special_token_ids.get("bos")
        special.add_special_token["bos"] = words.starts_with(self.tokenizer, start)
        writer.add_tokenizer_model(words.model)
        writer.add_tokenizer_pre(words.pre or "default")
        writer.add_token_list(words.tokens)
        writer.add_token_types(words.kinds)
        if words.scores is not None:
            writer.add_token_scores(words.scores)
            writer.add_add_space_prefix(words.space)
        special.add_to_gguf(writer, quiet=True)
