"""A tiny model with random weights of every decoder architecture of the installed transformers.

Each is made from its config class, with the settings in SMALL that the class has. SETTINGS has what an architecture
needs besides. VARIANTS are settings that change the kind of network, and UNMADE says why an architecture cannot be
made.
"""

from functools import cache
from pathlib import Path
from typing import Any

import tokenizers
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedConfig, PreTrainedTokenizerFast
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

Settings = dict[str, Any]

VOCABULARY, LONGEST = 512, 512
TEXT = "".join(f"Line {i}: fox {i * 7 % 31} jumps over {i % 13} lazy dogs, and {i % 5} sleep.\n" for i in range(400))

_SMALL: tuple[tuple[int, str], ...] = (
    (2, "num_hidden_layers n_layer n_layers num_layers decoder_layers encoder_layers num_decoder_layers depth "
        "num_encoder_layers num_blocks num_global_layers num_key_value_heads swa_num_key_value_heads num_kv_heads "
        "num_query_groups num_experts_per_tok moe_k num_experts_per_token moe_topk"),
    (4, "num_attention_heads n_head n_heads num_heads decoder_attention_heads encoder_attention_heads attention_heads "
        "swa_num_attention_heads num_encoder_attention_heads num_decoder_attention_heads linear_num_heads "
        "linear_num_key_heads linear_num_value_heads index_n_heads num_experts n_routed_experts num_local_experts "
        "moe_num_experts"),
    (8, "mamba_d_state state_size ssm_state_size mamba_n_heads n_mamba_heads mamba_num_heads patch_size"),
    (16, "head_dim v_head_dim global_head_dim swa_head_dim kv_lora_rank qk_rope_head_dim qk_nope_head_dim d_head "
         "linear_key_head_dim linear_value_head_dim linear_head_dim index_head_dim kv_channels mamba_d_head "
         "mamba_headdim mamba_head_dim attention_head_dim hidden_size_per_layer_input dim_head laurel_rank "
         "o_lora_rank"),
    (32, "qk_head_dim image_size"),
    (64, "hidden_size n_embd d_model q_lora_rank embedding_size lru_width dim_model embed_dim word_embed_proj_dim "
         "emb_dim input_embedding_size output_embedding_size out_hidden_size hidden_size_global attn_dim input_size "
         "vision_output_dim embedding_dim n_embed moe_intermediate_size expert_ffn_hidden_size"),
    (128, "intermediate_size decoder_ffn_dim encoder_ffn_dim ffn_dim n_inner ffn_hidden_size dff dim_ff mlp_dim "
          "block_ff_dim intermediate_size_mlp shared_intermediate_size shared_expert_intermediate_size "
          "dense_intermediate_size d_inner moe_shared_expert_intermediate_size"),
    (VOCABULARY, "vocab_size decoder_vocab_size vocab_size_per_layer_input"),
    (LONGEST, "max_position_embeddings n_positions n_ctx max_seq_len context_length"),
)  # fmt: skip
SMALL: Settings = {name: value for value, names in _SMALL for name in names.split()}

_LATENT = {"num_key_value_heads": 4}
_LINEAR = {"layer_types": ["linear_attention", "full_attention"]}
_ROTARY = {"rope_type": "default", "rope_theta": 10000.0}
_INDEXED = {
    "layer_types": ["linear_attention", "indexed_attention"],
    "hc_lowrank": 16,
    "indexer_n_heads": 4,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 16,
    "indexer_budget": 64,
    "indexer_compress_ratio": 4,
}
SETTINGS: dict[str, Settings] = {
    "axk1": {**_LATENT, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2},
    "axk2": _LATENT,
    "bailing_hybrid": {**_LATENT, **_LINEAR},
    "bamba": {"attn_layer_indices": [1]},
    "codegen": {"rotary_dim": 8},
    "cohere_compass_text": {
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {"sliding_attention": _ROTARY, "full_attention": _ROTARY},
    },
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
        "ffn_config": {"ffn_hidden_size": 64, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "deepseek_v2": {**_LATENT, "num_experts_per_tok": 2},
    "deepseek_v3": _LATENT,
    "deepseek_v32": _LATENT,
    "dots1": {"num_local_experts": 4, "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "dots3_note": {
        "text_config": _LATENT,
        "vision_config": {"mlp_layer_types": ["dense", "sparse"], "adapter_in_dim": 64, "adapter_out_dim": 64},
        "audio_config": {"adapter_out_dim": 64, "adapter_input_size": 64},
    },
    "dots3_note_text": _LATENT,
    "falcon_h1": {"mamba_d_ssm": 128},
    "gemma3n_text": {
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "intermediate_size": 128,
    },
    "glm4_moe_lite": _LATENT,
    "glm_moe_dsa": _LATENT,
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "gptj": {"rotary_dim": 8},
    "granitemoehybrid": _LINEAR,
    "hunyuan_v1_dense": {"head_dim": 16},
    "hunyuan_v1_moe": {"head_dim": 16},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "kimi_linear": {**_LATENT, **_LINEAR},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "lfm3": {"layer_types": ["conv", "full_attention"]},
    "longcat_flash": {**_LATENT, "zero_expert_num": 2},
    "mamba2": {"num_heads": 8},
    "minicpm3": _LATENT,
    "ministral": {"head_dim": 16},
    "nemotron": {"head_dim": 16, "num_key_value_heads": 2},
    "qwen3_5": {"text_config": _LINEAR},
    "qwen3_5_moe": {"text_config": _LINEAR},
    "qwen3_5_moe_text": _LINEAR,
    "qwen3_5_text": _LINEAR,
    "qwen3_next": _LINEAR,
    "qwen4_exp": {"text_config": _INDEXED},
    "qwen4_exp_text": _INDEXED,
    "recurrent_gemma": {"num_hidden_layers": 3},
    "reformer": {"axial_pos_embds": False},
    "roc_bert": {
        "shape_vocab_size": VOCABULARY,
        "pronunciation_vocab_size": VOCABULARY,
        "pronunciation_embed_dim": 64,
        "shape_embed_dim": 64,
    },
    "xlstm": {"qk_dim_factor": 1.0},
    "xmod": {"default_language": "en_XX"},
    "youtu": _LATENT,
    "zamba": {"num_hidden_layers": 4, "layers_block_type": ["linear_attention", "hybrid"] * 2},
    "zamba2": {"layers_block_type": ["linear_attention", "hybrid"]},
    "zaya": {"num_experts_per_tok": 1},
}
VARIANTS: dict[str, tuple[str, Settings]] = {
    "falcon, ALiBi": ("falcon", {"alibi": True, "multi_query": False, "num_kv_heads": 4}),
    "llama, biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
}
_DRAFT = "it drafts for another model, whose keys and values it reads"
_WHOLE = "transformers registers the config of the whole model for it, which its decoder does not take"
_TEXT = "transformers makes a model of its text part, whose folder it does not load"
UNMADE: dict[str, str] = {
    "blt": "transformers reads a setting that its config does not have, so that it does not run",
    "emu3": _TEXT,
    "mllama": _TEXT,
    "gemma3n": "its vision tower is another package's (timm)",
    "gemma4_assistant": _DRAFT,
    "gemma4_unified_assistant": _DRAFT,
    "musicgen": _WHOLE,
    "musicgen_melody": _WHOLE,
}


def architectures() -> list[str]:
    """Return all causal language models of transformers, and the variants."""
    return sorted([*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *VARIANTS])


def config(name: str) -> PreTrainedConfig:
    """Return the configuration of a tiny model of an architecture or variant."""
    kind, settings = VARIANTS.get(name, (name, {}))
    made = CONFIG_MAPPING[kind]
    return made(**_settings(made, {**SETTINGS.get(kind, {}), **settings}))


def _settings(kind: type[PreTrainedConfig], more: Settings) -> Settings:
    """Return the settings in SMALL that a config class has, and those of its parts. `more` takes precedence."""
    default = kind().to_dict()
    found = {name: value for name, value in SMALL.items() if isinstance(default.get(name), int | float)}
    found |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    found |= {"is_decoder": True} if "is_decoder" in default else {}
    for name, part in kind.sub_configs.items():
        if isinstance(default.get(name), dict):
            model_type = default[name].get("model_type")
            known = model_type in CONFIG_MAPPING  # which has no `get` that loads
            found[name] = {
                **_settings(CONFIG_MAPPING[model_type] if known else part, more.get(name, {})),
                "model_type": model_type,
            }
    return {
        **found,
        **{name: value for name, value in more.items() if name not in found or name not in kind.sub_configs},
    }


def write(folder: Path, name: str, dtype: torch.dtype = torch.bfloat16) -> Path:
    """Write a folder with the model of an architecture and a tokenizer."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config(name))
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if parameter.dim() >= 2:
                parameter.normal_(0, 0.08)
            elif "sink" in key:
                parameter.normal_(0, 1)
        for module in model.modules():
            if isinstance(module, torch.nn.Embedding) and module.padding_idx is not None:
                module.weight[module.padding_idx] = 0  # as torch has it; some classes do so again when they load
    model.to(dtype).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer that was trained on TEXT."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    special = ["<pad>", "<s>", "</s>"]
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator([TEXT], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", bos_token="<s>", eos_token="</s>")
