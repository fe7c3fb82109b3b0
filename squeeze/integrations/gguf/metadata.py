"""Metadata of a GGUF file, from config.json and the tokenizer's files.

The gguf package has the keys. This module knows which of them llama.cpp reads for an architecture.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from squeeze.checkpoint.architectures import EMBEDDING
from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.errors import FormatError, ModelError, printable
from squeeze.integrations.gguf.families import FAMILIES, FULL, LOCAL, Family
from squeeze.integrations.gguf.vocabulary import Vocabulary, vocabulary_of
from squeeze.lm import rotary
from squeeze.system.documents import read_object

__all__ = ["Metadata"]

_ROPE = ("default", "dynamic", "linear", "yarn", "llama3")  # dynamic scaling begins beyond the trained context
_CAPS = ("attn_logit_softcapping", "final_logit_softcapping")
_SCALED = ("linear", "yarn")
_SCALED_BY = 256  # where config.json does not say it
_MANY = 1 << 32
_MOST = 1e30


class _WrongNumber(ValueError):
    """A value in config.json that is not the expected number."""


@dataclass(frozen=True)
class Metadata:
    """Metadata of a folder that llama.cpp can run. Create it with `of`."""

    folder: Path
    config: Mapping[str, Any]
    family: Family
    vocabulary: Vocabulary
    tokenizer: Mapping[str, Any]

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> "Metadata":
        """Check a checkpoint and return its Metadata.

        Raises ModelError if llama.cpp cannot run the model, and FormatError if something is missing.
        """
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
        try:
            for reason, holds in self._faults().items():
                if holds:
                    raise ModelError(f"{self.folder}: cannot be written as GGUF: it has {printable(reason)}")
            assert self._values
            self.divisors()
        except KeyError as error:
            raise FormatError(f"{self.folder}: config.json has no {error.args[0]}") from None
        except _WrongNumber as error:
            raise FormatError(f"{self.folder}: config.json: {error}") from None
        except (ArithmeticError, ValueError):
            raise FormatError(f"{self.folder}: config.json: its rotary scaling gives no angles") from None

    def _faults(self) -> dict[str, bool]:
        """Return what llama.cpp cannot run, with whether the model has it."""
        rope, kind, kind_of = self._rope, self._rope_type, self.config["model_type"]
        return {
            f"the activation {self._activation}": self._activation not in self.family.activations,
            **self._faults_of_windows(),
            "sliding windows": bool(self.config.get("use_sliding_window")),
            "attention in both directions": bool(self.config.get("use_bidirectional_attention")),
            "no cap on its logits": self.family.capped and any(self.config.get(key, ...) is None for key in _CAPS),
            "experts whose shares do not sum to 1": kind_of == "qwen3_moe" and not self.config.get("norm_topk_prob"),
            "blocks with and without experts": bool(self.config.get("mlp_only_layers"))
            or self.config.get("decoder_sparse_step", 1) != 1,
            "a rotary embedding of a part of each head": rope.get("partial_rotary_factor", 1.0) != 1,
            f"the rotary scaling {kind}": kind not in _ROPE,
            "YaRN with limits of its own": (rope.get("beta_fast") or rotary.BETA_FAST) != rotary.BETA_FAST
            or (rope.get("beta_slow") or rotary.BETA_SLOW) != rotary.BETA_SLOW
            or bool(rope.get("mscale"))
            or not rope.get("truncate", True),
        }

    @property
    def _activation(self) -> str:
        return str(self.config.get("hidden_activation") or self.config.get("hidden_act") or self.family.activations[0])

    def _faults_of_windows(self) -> dict[str, bool]:
        """Return what llama.cpp fixes for models with windows in some blocks, with whether the model differs."""
        period, config = self.family.period, self.config
        if not period:
            return {}
        wanted = [LOCAL if (i + 1) % period else FULL for i in range(_whole(config, "num_hidden_layers"))]
        local = self._rope_of(LOCAL).get("rope_theta", config.get("rope_local_base_freq", self.family.local_base))
        return {
            f"windows in other blocks than {period - 1} of {period}": (config.get("layer_types") or wanted) != wanted,
            "another size of a window's pattern": config.get("sliding_window_pattern", period) != period,
            "queries that are scaled otherwise than by their size": self._scaled_otherwise,
            f"rotary angles of base {local} in windows": self.family.local_base not in (None, local),
        }

    @property
    def _scaled_otherwise(self) -> bool:
        """Return whether queries are divided by the root of another number than llama.cpp uses."""
        size: float = self._head_size
        if _whole(self.config, "num_hidden_layers") == self.family.by_width:
            size = _whole(self.config, "hidden_size") / _whole(self.config, "num_attention_heads")
        return bool(self.config.get("query_pre_attn_scalar", _SCALED_BY) != size)

    def _rope_of(self, kind: str) -> dict[str, Any]:
        """Return the rotary settings of one kind of blocks."""
        own = (self.config.get("rope_parameters") or {}).get(kind)
        return own if isinstance(own, dict) else {}

    @cached_property
    def _rope(self) -> dict[str, Any]:
        own = {key: self.config[key] for key in ("rope_theta", "partial_rotary_factor") if self.config.get(key)}
        told = dict(self.config.get("rope_parameters") or {})
        for kind in (FULL, LOCAL):
            told.pop(kind, None)
        rope = {**told, **self._rope_of(FULL), **(self.config.get("rope_scaling") or {})}
        return {"rope_theta": 10000.0, **own, **rope}

    @property
    def _rope_type(self) -> str:
        return str(self._rope.get("rope_type") or self._rope.get("type") or "default")

    def heads(self, name: str) -> int:
        """Return the number of heads by which a tensor's rows are interleaved, or 0."""
        leaf = name.rpartition(".")[0].rpartition(".")[2]
        if not self.family.interleaved or leaf not in ("attn_q", "attn_k"):
            return 0
        return int(self._values["head_count" if leaf == "attn_q" else "head_count_kv"])

    def shift(self, name: str) -> float:
        """Return what is added to a tensor of the checkpoint to give the file's."""
        return 1.0 if self.family.shifted and name.endswith("norm.weight") else 0.0

    def divisors(self) -> np.ndarray | None:
        """Return the divisor of each rotary angle, float32, or None if they are all equal (Llama 3.1 has different
        ones).
        """
        if self._rope_type != "llama3":
            return None
        size, rope = self._head_size, self._rope
        factor, low, high = (_number(rope, key) for key in ("factor", "low_freq_factor", "high_freq_factor"))
        base, trained = _number(rope, "rope_theta"), _number(rope, "original_max_position_embeddings")
        scaled = rotary.llama3(base, size, factor, low, high, trained)
        return np.divide(rotary.plain(base, size), scaled).astype(np.float32)

    def write(self, writer: gguf.GGUFWriter, name: str, file_type: int) -> None:
        """Add all keys to a file.

        Args:
            writer: Writer of the gguf package.
            name: Name of the model.
            file_type: llama.cpp's number of the type of most matrices.
        """
        writer.add_name(name)
        writer.add_file_type(file_type)
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
        for key, value in self._values.items():
            getattr(writer, f"add_{key}")(value)
        if self._rope_type in _SCALED:
            writer.add_rope_scaling_type(gguf.RopeScalingType(self._rope_type))
        self._tokens(writer)

    @property
    def _head_size(self) -> int:
        if self.config.get("head_dim"):
            return _whole(self.config, "head_dim")
        return _whole(self.config, "hidden_size") // _whole(self.config, "num_attention_heads")

    @property
    def window(self) -> int | None:
        """Tokens of a sliding window in all blocks, which llama.cpp ignores; 0 or None without one."""
        has_window = self.family.windowed and self.config.get("sliding_window")
        return _whole(self.config, "sliding_window") if has_window else None

    @cached_property
    def _values(self) -> dict[str, int | float]:
        """Values for the methods add_NAME of the gguf package's writer."""
        config, size = self.config, self._head_size
        values: dict[str, int | float] = {
            "block_count": _whole(config, "num_hidden_layers"),
            "context_length": _whole(config, "max_position_embeddings"),
            "embedding_length": _whole(config, "hidden_size"),
            "feed_forward_length": _whole(config, "intermediate_size"),
            "head_count": _whole(config, "num_attention_heads"),
            "head_count_kv": _whole(config, "num_key_value_heads", "num_attention_heads"),
            "key_length": size,
            "value_length": size,
            "layer_norm_rms_eps": _number(config, "rms_norm_eps"),
            "vocab_size": len(self.vocabulary.tokens),
            "rope_dimension_count": size,
            "rope_freq_base": _number(self._rope, "rope_theta"),
        }
        if self.window:
            values["sliding_window"] = self.window
        if self.family.experts:
            values |= {
                "expert_count": _whole(config, "num_local_experts", "num_experts"),
                "expert_used_count": _whole(config, "num_experts_per_tok"),
                "expert_feed_forward_length": _whole(config, "moe_intermediate_size", "intermediate_size"),
            }
        if self.family.period:
            caps = [key for key in _CAPS if config.get(key) is not None]
            values |= {
                "sliding_window": _whole(config, "sliding_window"),
                **{key: _number(config, key) for key in caps},
            }
        return values | self._scaling()

    def _scaling(self) -> dict[str, int | float]:
        """Scaling of all rotary angles, if llama.cpp has a name for its rule."""
        rope = self._rope
        if self._rope_type not in _SCALED:
            return {}
        factor = _number(rope, "factor")
        values: dict[str, int | float] = {"rope_scaling_factor": factor}
        if self._rope_type == "yarn":
            trained = "original_max_position_embeddings"
            values["rope_scaling_orig_ctx_len"] = _whole({**self.config, **rope}, trained, "max_position_embeddings")
            if rope.get("attention_factor") is not None:  # llama.cpp multiplies YaRN's own with it
                own = rotary.yarn_scale(factor)
                values["rope_scaling_attn_factors"] = _number(rope, "attention_factor") / own
        return values

    def _tokens(self, writer: gguf.GGUFWriter) -> None:
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


def _number(table: Mapping[str, Any], key: str) -> float:
    """Return a number of a configuration; raises KeyError if it is missing, and _WrongNumber if it is something
    else."""
    value = table[key]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= _MOST:
        raise _WrongNumber(f"{key}: {printable(repr(value))} is not a number that GGUF has")
    return float(value)


def _whole(table: Mapping[str, Any], key: str, otherwise: str | None = None) -> int:
    """Return a non-negative whole number, of the key `otherwise` or 0 if the first key is missing."""
    if otherwise is not None and not table.get(key):
        return _whole(table, otherwise)
    value = _number(table, key)
    if value != int(value) or not 0 <= value < _MANY:
        raise _WrongNumber(f"{key}: {printable(repr(table[key]))} is not a size that a model has")
    return int(value)
