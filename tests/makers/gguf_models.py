"""Make small networks of the architectures that GGUF files can hold, and read such files."""

import ctypes
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch

from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.integrations.gguf.export import Export
from squeeze.integrations.gguf.metadata import Metadata
from squeeze.lm.gguffile import GgufFile
from squeeze.lm.llamacpp_library import model_parameters
from tests.makers import tiny_models

SIZES = {"hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
SIZES |= {"intermediate_size": 512, "max_position_embeddings": 128}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
EXPERTS = {**SIZES, "intermediate_size": 256, "num_experts_per_tok": 2}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {**SIZES, "attention_bias": True, "mlp_bias": False}),
    "biased": ("LlamaConfig", {**SIZES, "attention_bias": True, "mlp_bias": True}),
    "llama3": ("LlamaConfig", {**SIZES, "rope_parameters": {**LLAMA3, "original_max_position_embeddings": 16}}),
    "linear": ("LlamaConfig", {**SIZES, "rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}}),
    "yarn": (
        "Qwen2Config",
        {
            **SIZES,
            "rope_parameters": {
                **{"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32}
            },
        },
    ),
    "mistral": ("MistralConfig", {**SIZES, "head_dim": 128, "sliding_window": None}),
    "qwen2": ("Qwen2Config", {**SIZES, "tie_word_embeddings": True}),
    "qwen3": ("Qwen3Config", {**SIZES, "head_dim": 128, "tie_word_embeddings": True}),
    "gemma": ("GemmaConfig", {**SIZES, "head_dim": 128}),
    "gemma2": ("Gemma2Config", {**SIZES, "head_dim": 64, "query_pre_attn_scalar": 64, "sliding_window": 8}),
    "gemma3": (
        "Gemma3TextConfig",
        {**SIZES, "num_hidden_layers": 6, "head_dim": 64, "query_pre_attn_scalar": 64, "sliding_window": 8},
    ),
    "mixtral": ("MixtralConfig", {**EXPERTS, "num_local_experts": 4, "sliding_window": None}),
    "qwen3_moe": (
        "Qwen3MoeConfig",
        {**EXPERTS, "moe_intermediate_size": 256, "num_experts": 4, "norm_topk_prob": True, "head_dim": 64},
    ),
}
IDS = torch.randint(0, 390, (40,), generator=torch.Generator().manual_seed(1))
TEMPLATE = "{% for message in messages %}{{ message['role'] + ': ' + message['content'] }}{% endfor %}"


def save(
    kind: str,
    folder: Path,
    tokenizer: tokenizers.Tokenizer | None = None,
    dtype: torch.dtype = torch.float32,
    fused: bool = False,
    **changes: Any,
) -> Path:
    """Save a network of one of KINDS as a folder with its tokenizer.

    Args:
        kind: key of KINDS
        folder: new folder
        tokenizer: tokenizer, None for a default one
        dtype: dtype of the weights
        fused: whether a layer's experts are one tensor, as transformers has them in memory
    """
    import transformers

    tokenizer = tokenizer or tiny_models.byte_level(space=False)
    name, sizes = KINDS[kind]
    torch.manual_seed(4)
    settings = {"vocab_size": tokenizer.get_vocab_size() + 3, "bos_token_id": 1, "eos_token_id": 0, **sizes, **changes}
    model = transformers.AutoModelForCausalLM.from_config(getattr(transformers, name)(**settings)).to(dtype)
    for key, parameter in model.named_parameters():
        if parameter.ndim == 1:
            parameter.data += torch.rand(parameter.shape) - 0.5 * ("bias" in key)
        elif "mlp.gate.weight" not in key:
            parameter.data *= 2  # so that logits are far from uniform
    model.save_pretrained(folder, save_original_format=not fused)
    (folder / "tokenizer.json").write_text(tokenizer.to_str())
    settings = {"bos_token": "<|im_start|>", "eos_token": "<|endoftext|>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def dequantised(path: Path, export: Export) -> torch.nn.Module:
    """Return the transformers model of a folder with the numbers of the GGUF file that was made from it."""
    from squeeze.integrations.load_model import load_model

    model, file = load_model(export.checkpoint.folder), GgufFile(path)
    parameters, config = dict(model.named_parameters()), export.checkpoint.config
    for name, sources in export.named.items():
        values = np.array(file.float_rows(name, 0, file.shapes[name][0])) - export.metadata.shift(name)
        if heads := export.metadata.heads(name):
            values = values.reshape(heads, -1, 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
        if ".experts." not in sources[0]:
            source = sources[0].replace("block_sparse_moe", "mlp")
            parameters[source].data.copy_(torch.from_numpy(values))
            continue
        block, part = int(name.split(".")[1]), name.split(".")[2].removeprefix("ffn_").removesuffix("_exps")
        fused = f"model.layers.{block}.mlp.experts.{'down_proj' if part == 'down' else 'gate_up_proj'}"
        place = parameters[fused].data
        if part != "down":
            width = config.get("moe_intermediate_size") or config["intermediate_size"]
            place = place[:, :width] if part == "gate" else place[:, width:]
        place.copy_(torch.from_numpy(values))
    return model


def types_of(path: Path) -> dict[str, str]:
    file = GgufFile(path)
    return {name: file.kind(name).name for name in file.shapes}


def opened(path: Path) -> Any:
    llama_cpp = pytest.importorskip("llama_cpp")
    exact = {"type_k": 0, "type_v": 0, "n_threads": 1, "n_threads_batch": 1}  # keys and values in float32
    chosen = model_parameters(llama_cpp)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("llama_cpp.llama_cpp.llama_model_default_params", lambda: chosen)
        return llama_cpp.Llama(str(path), n_ctx=64, n_batch=64, logits_all=True, verbose=False, **exact)


def llama_logits(path: Path, ids: torch.Tensor) -> torch.Tensor:
    model = opened(path)
    model.eval(ids.tolist())
    logits = torch.from_numpy(np.array(model.scores[: len(ids)]))
    model.close()
    return logits


def as_floats(path: Path) -> Path:
    """Return a copy of the file with all tensors dequantised by llama.cpp."""
    llama_cpp, out = pytest.importorskip("llama_cpp"), path.with_suffix(".floats.gguf")
    quantise(path, out, llama_cpp.LLAMA_FTYPE_ALL_F32)
    return out


def quantise(path: Path, out: Path, kind: int, calibrated: bool = False) -> None:
    """Let llama.cpp write a file in one of its mixtures of types, a number LLAMA_FTYPE.

    If `calibrated`, it gets an importance matrix of ones.
    """
    llama_cpp = pytest.importorskip("llama_cpp")
    options = llama_cpp.llama_model_quantize_default_params()
    options.ftype, options.allow_requantize, options.nthread = kind, True, 1
    entry, pointer = llama_cpp.llama_model_imatrix_data, ctypes.POINTER(ctypes.c_float)
    sizes = {name: shape[-1] for name, shape in GgufFile(path).shapes.items() if name.startswith("blk.")}
    kept = {name.encode(): np.ones(size, np.float32) for name, size in sizes.items()}
    table = [entry(name, values.ctypes.data_as(pointer), values.size) for name, values in kept.items()]
    entries = (entry * (len(table) + 1))(*table)  # the last one has no name
    if calibrated:
        options.imatrix = entries
    assert llama_cpp.llama_model_quantize(bytes(path), bytes(out), ctypes.byref(options)) == 0


def check_network(path: Path, folder: Path) -> None:
    """Check that llama.cpp dequantises to our numbers, and computes what transformers computes with them.

    With quantised products, which round activations for types of few bits, it must be near that.
    """
    model = dequantised(path, Export.of(Checkpoint.open(folder)))
    with torch.no_grad():
        wanted = model(IDS[None]).logits[0]
    floats = as_floats(path)
    ours, theirs = GgufFile(path), GgufFile(floats)
    for name, shape in ours.shapes.items():
        assert np.array_equal(ours.float_rows(name, 0, shape[0]), theirs.float_rows(name, 0, shape[0])), name
    gelu = "silu" not in Metadata.of(Checkpoint.open(folder)).family.activations  # llama.cpp: a table in half precision
    assert float((llama_logits(floats, IDS) - wanted).abs().max()) < (1e-2 if gelu else 1e-3)
    apart = (llama_logits(path, IDS) - wanted).norm(dim=-1) / wanted.norm(dim=-1)
    assert float(apart.median()) < 0.05  # where routing is the same
    floats.unlink()
