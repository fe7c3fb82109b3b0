"""Language models of a few thousand weights, one of each kind that a KV cache must support."""

import torch
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    DiffLlamaConfig,
    DiffLlamaForCausalLM,
    DogeConfig,
    DogeForCausalLM,
    FalconConfig,
    FalconForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from squeeze.kv import FullPrecision, QuantizedKVCache
from squeeze.kv.contract import CACHE
from squeeze.kv.statistics import observe
from tests.makers import tiny_models

VOCABULARY = 61
_SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
}


def llama(**options):
    return _made(LlamaForCausalLM, LlamaConfig(**_SHAPE | options))


def mistral():
    """Make a model whose layers all attend to 24 tokens."""
    return _made(MistralForCausalLM, MistralConfig(**_SHAPE, sliding_window=24))


def qwen2():
    """Make a model whose second layer attends to 24 tokens, the first to all."""
    layers = {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1}
    shape = {key: value for key, value in _SHAPE.items() if key != "head_dim"}
    return _made(Qwen2ForCausalLM, Qwen2Config(**shape, **layers))


def gpt2():
    shape = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 512}
    ids = {key: _SHAPE[key] for key in ("vocab_size", "bos_token_id", "eos_token_id", "pad_token_id")}
    return _made(GPT2LMHeadModel, GPT2Config(**shape, **ids))


def gpt_oss(**options):
    """Make a model with attention sinks, whose first layer attends to 24 tokens."""
    shape = _SHAPE | {"num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 24}
    rope = {"rope_type": "default", "rope_theta": 10000.0}
    model = _made(GptOssForCausalLM, GptOssConfig(**shape | options, rope_parameters=rope))
    for layer in model.model.layers:
        layer.self_attn.sinks.data.copy_(torch.tensor([2.0, -1.0, 0.0, 3.0]))
    return model


def gemma2(**options):
    """Make a model with a softcap and a scale of its own for scores, whose first layer attends to 24 tokens."""
    scores = {"sliding_window": 24, "attn_logit_softcapping": 0.5, "query_pre_attn_scalar": 4}
    return _made(Gemma2ForCausalLM, Gemma2Config(**_SHAPE | scores | options))


def deepseek_v3(**options):
    """Make a model that caches a latent and a rotary key, and expands them to keys and values."""
    shape = _SHAPE | {"num_key_value_heads": 4, "moe_intermediate_size": 16, "first_k_dense_replace": 1}
    latent = {"kv_lora_rank": 16, "q_lora_rank": None, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
    experts = {"n_routed_experts": 2, "num_experts_per_tok": 1, "n_group": 1, "topk_group": 1, "n_shared_experts": 1}
    return _made(DeepseekV3ForCausalLM, DeepseekV3Config(**shape | latent | experts | options))


def falcon(**options):
    """Make a model that attends without transformers' registry of attention functions."""
    others = "intermediate_size", "num_key_value_heads", "head_dim"
    shape = {key: value for key, value in _SHAPE.items() if key not in others}
    return _made(FalconForCausalLM, FalconConfig(**shape | options))


def diffllama(**options):
    """Make a model that changes the cache's values, but not its keys, before it attends to them."""
    return _made(DiffLlamaForCausalLM, DiffLlamaConfig(**_SHAPE | options))


def doge(**options):
    """Make a model that reads the cache's values outside attention as well."""
    return _made(DogeForCausalLM, DogeConfig(**_SHAPE | {"num_experts": 4} | options))


ASKING = {kind.__name__: kind for kind in (gpt_oss, gemma2, deepseek_v3, falcon, diffllama, doge)}
MODELS = {"llama": llama, "mistral": mistral, "qwen2": qwen2, "gpt2": gpt2}


def _made(kind, config):
    torch.manual_seed(0)
    model = kind(config).eval()
    for parameter in model.parameters():
        parameter.data.mul_(4)  # attention that looks at some tokens more than at others
    model.generation_config.eos_token_id = None
    return model


def write(model, folder):
    """Write a model's folder, with a tokenizer of at most 400 tokens."""
    model.save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=tiny_models.byte_level()).save_pretrained(folder)
    return folder


def tokens(batch=1, length=40, seed=0):
    return torch.randint(2, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))


def error_of(model, policy):
    """Return the relative errors of keys and values through a cache."""
    cache, ids = QuantizedKVCache(model.config, policy), tokens(length=200, seed=3)
    plain = QuantizedKVCache(model.config, FullPrecision())
    with torch.no_grad():
        model(ids, **{CACHE: cache})
        model(ids, **{CACHE: plain})
    pairs = [(a.dense(), b.dense()) for a, b in zip(cache.packed_layers, plain.packed_layers, strict=True)]
    return max(float((x - y).norm() / y.norm()) for a, b in pairs for x, y in zip(a, b, strict=True))


def calibrated_on_text(model):
    """Return the model, and statistics of its keys and values on random tokens."""
    return model, observe(model, tokens(length=400)[0], context=200, windows=2, window=16)
