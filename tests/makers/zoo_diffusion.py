"""A tiny model with random weights of classes of diffusers, and samples of their inputs, as zoo_others.py has them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import diffusers
import torch

from squeeze.engine.inputs import Samples

Maker = Callable[[torch.Generator], dict[str, Any]]
_TEXT, _SIDE = 5, 8  # tokens of a prompt, and side of an image of latents


def _noise(rng: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(1, *shape, generator=rng)


def _step(rng: torch.Generator) -> torch.Tensor:
    return torch.randint(1, 1000, (1,), generator=rng)


def _image(rng: torch.Generator) -> dict[str, Any]:
    return {"sample": _noise(rng, 4, _SIDE, _SIDE), "timestep": _step(rng)}


def _latents(rng: torch.Generator) -> dict[str, Any]:
    return {"hidden_states": _noise(rng, 4, _SIDE, _SIDE), "timestep": _step(rng)}


def _with_text(rng: torch.Generator, width: int = 64) -> dict[str, Any]:
    return {**_latents(rng), "encoder_hidden_states": _noise(rng, _TEXT, width)}


def _dit(rng: torch.Generator) -> dict[str, Any]:
    return {**_latents(rng), "class_labels": torch.randint(0, 10, (1,), generator=rng)}


def _pooled(rng: torch.Generator) -> dict[str, Any]:
    return {**_with_text(rng), "pooled_projections": _noise(rng, 64)}


def _flux(rng: torch.Generator) -> dict[str, Any]:
    return {
        "hidden_states": _noise(rng, 16, 16),
        "encoder_hidden_states": _noise(rng, _TEXT, 64),
        "pooled_projections": _noise(rng, 64),
        "timestep": torch.rand(1, generator=rng),
        "img_ids": torch.cartesian_prod(torch.zeros(1), torch.arange(4.0), torch.arange(4.0)),
        "txt_ids": torch.zeros(_TEXT, 3),
    }


def _unet(rng: torch.Generator) -> dict[str, Any]:
    return {**_image(rng), "encoder_hidden_states": _noise(rng, _TEXT, 64)}


def _sdxl(rng: torch.Generator) -> dict[str, Any]:
    added = {"text_embeds": _noise(rng, 64), "time_ids": torch.randint(0, 64, (1, 6), generator=rng).float()}
    return {**_unet(rng), "added_cond_kwargs": added}


def _video(rng: torch.Generator) -> dict[str, Any]:
    return {
        "hidden_states": _noise(rng, 4, 2, _SIDE, _SIDE),
        "timestep": _step(rng),
        "encoder_hidden_states": _noise(rng, _TEXT, 64),
    }


def _frames(rng: torch.Generator) -> dict[str, Any]:
    return {**_video(rng), "hidden_states": _noise(rng, 2, 4, _SIDE, _SIDE)}


def _masked_text(rng: torch.Generator) -> dict[str, Any]:
    return {**_with_text(rng), "encoder_attention_mask": torch.ones(1, _TEXT)}


def _ltx(rng: torch.Generator) -> dict[str, Any]:
    shape = {"num_frames": 2, "height": 4, "width": 4}
    return {**_masked_text(rng), "hidden_states": _noise(rng, 32, 16), **shape}


def _qwen(rng: torch.Generator) -> dict[str, Any]:
    found = {**_with_text(rng), "hidden_states": _noise(rng, 16, 16), "timestep": torch.rand(1, generator=rng)}
    mask = torch.ones(1, _TEXT, dtype=torch.long)
    return {**found, "encoder_hidden_states_mask": mask, "img_shapes": [[(1, 4, 4)]]}


def _lumina(rng: torch.Generator) -> dict[str, Any]:
    return {**_masked_text(rng), "encoder_attention_mask": torch.ones(1, _TEXT, dtype=torch.bool)}


def _mochi(rng: torch.Generator) -> dict[str, Any]:
    return {**_video(rng), "encoder_attention_mask": torch.ones(1, _TEXT, dtype=torch.bool)}


_ATTENTION = {"num_attention_heads": 4, "attention_head_dim": 16}
_LAYERS = {**_ATTENTION, "num_layers": 2}
_SMALL = {**_LAYERS, "in_channels": 4, "sample_size": _SIDE, "patch_size": 2}
_CROSSED = {**_SMALL, "out_channels": 4, "cross_attention_dim": 64, "caption_channels": 64}
_UNET = {
    "sample_size": _SIDE,
    "in_channels": 4,
    "out_channels": 4,
    "block_out_channels": (32, 64),
    "norm_num_groups": 8,
    "layers_per_block": 1,
    "cross_attention_dim": 64,
    "attention_head_dim": 16,
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
}
_PATCHES = {**_LAYERS, "in_channels": 4, "out_channels": 4, "text_dim": 64, "freq_dim": 32, "ffn_dim": 128}
KINDS: dict[str, tuple[Maker, dict[str, Any]]] = {
    "DiTTransformer2DModel": (_dit, {**_SMALL, "num_embeds_ada_norm": 10, "norm_num_groups": 8}),
    "PixArtTransformer2DModel": (_with_text, _CROSSED),
    "SanaTransformer2DModel": (
        _with_text,
        {**_CROSSED, "num_cross_attention_heads": 4, "cross_attention_head_dim": 16, "patch_size": 1},
    ),
    "SD3Transformer2DModel": (
        _pooled,
        {**_SMALL, "joint_attention_dim": 64, "caption_projection_dim": 64, "pooled_projection_dim": 64,
         "out_channels": 4, "pos_embed_max_size": 8},
    ),
    "FluxTransformer2DModel": (
        _flux,
        {**_LAYERS, "patch_size": 1, "in_channels": 16, "num_single_layers": 2, "joint_attention_dim": 64,
         "pooled_projection_dim": 64, "axes_dims_rope": (4, 6, 6)},
    ),
    "AuraFlowTransformer2DModel": (
        _with_text,
        {"sample_size": _SIDE, "patch_size": 2, "in_channels": 4, "num_mmdit_layers": 1, "num_single_dit_layers": 1,
         **_ATTENTION, "joint_attention_dim": 64, "caption_projection_dim": 64, "pos_embed_max_size": 32},
    ),
    "QwenImageTransformer2DModel": (
        _qwen,
        {**_LAYERS, "patch_size": 2, "in_channels": 16, "out_channels": 4, "joint_attention_dim": 64,
         "axes_dims_rope": (4, 6, 6)},
    ),
    "Lumina2Transformer2DModel": (
        _lumina,
        {"sample_size": _SIDE, "patch_size": 2, "in_channels": 4, "hidden_size": 64, "num_layers": 2,
         "num_refiner_layers": 1, "num_attention_heads": 4, "num_kv_heads": 2, "multiple_of": 32,
         "axes_dim_rope": (4, 6, 6), "axes_lens": (32, 16, 16), "cap_feat_dim": 64},
    ),
    "WanTransformer3DModel": (_video, {**_PATCHES, "patch_size": (1, 2, 2), "cross_attn_norm": True}),
    "LTXVideoTransformer3DModel": (
        _ltx,
        {**_LAYERS, "in_channels": 16, "out_channels": 16, "cross_attention_dim": 64, "caption_channels": 64},
    ),
    "CogVideoXTransformer3DModel": (
        _frames,
        {**_LAYERS, "in_channels": 4, "out_channels": 4, "time_embed_dim": 32, "text_embed_dim": 64,
         "sample_width": _SIDE, "sample_height": _SIDE, "sample_frames": 5, "patch_size": 2,
         "max_text_seq_length": _TEXT},
    ),
    "MochiTransformer3DModel": (
        _mochi,
        {**_LAYERS, "patch_size": 2, "pooled_projection_dim": 16, "in_channels": 4, "text_embed_dim": 64,
         "time_embed_dim": 32, "max_sequence_length": _TEXT},
    ),
    "LatteTransformer3DModel": (_video, {**_CROSSED, "video_length": 2, "norm_type": "ada_norm_single"}),
    "UNet2DModel": (
        _image,
        {**{key: value for key, value in _UNET.items() if key != "cross_attention_dim"},
         "down_block_types": ("DownBlock2D", "AttnDownBlock2D"), "up_block_types": ("AttnUpBlock2D", "UpBlock2D")},
    ),
    "UNet2DConditionModel": (_unet, _UNET),
    "UNet2DConditionModel, as in SDXL": (
        _sdxl,
        {**_UNET, "addition_embed_type": "text_time", "addition_time_embed_dim": 8,
         "projection_class_embeddings_input_dim": 112, "use_linear_projection": True,
         "transformer_layers_per_block": (1, 2), "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
         "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D")},
    ),
}  # fmt: skip


def write(folder: Path, name: str, dtype: torch.dtype = torch.float32) -> Path:
    """Write a folder with a model of a class."""
    torch.manual_seed(0)
    model = getattr(diffusers, name.partition(",")[0])(**KINDS[name][1])
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                parameter.normal_(0, 0.08)
    model.to(dtype).save_pretrained(folder)
    return folder


def samples(name: str, count: int = 8, seed: int = 1) -> Samples:
    """Return samples of a class's inputs."""
    rng = torch.Generator().manual_seed(seed)
    return Samples.of(KINDS[name][0](rng) for _ in range(count))
