"""A tiny model with random weights of classes of transformers that are no decoders, and samples of their inputs.

Encoders, encoders with a decoder, vision, pairs of towers, vision with language, and speech. As in zoo.py, each is made
from its config class with the settings in SMALL.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import CONFIG_MAPPING

from squeeze.engine.inputs import Samples
from tests.makers import zoo

Maker = Callable[[Any, torch.Generator], dict[str, torch.Tensor]]
_LENGTH, _SIZE = 16, 32


def _ids(config: Any, rng: torch.Generator, length: int = _LENGTH) -> torch.Tensor:
    return torch.randint(5, 390, (1, length), generator=rng)


def _text(config: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    return {"input_ids": _ids(config, rng)}


def _both(config: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    return {"input_ids": _ids(config, rng), "decoder_input_ids": _ids(config, rng, 8)}


def _image(config: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(1, 3, _SIZE, _SIZE, generator=rng)}


def _pair(config: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    return _text(config, rng) | _image(config, rng)


def _sound(config: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    return {"input_values": torch.randn(1, 4000, generator=rng)}


def _spectrum(config: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    features = torch.randn(1, 8, 2 * config.max_source_positions, generator=rng)
    return {"input_features": features, "decoder_input_ids": _ids(config, rng, 8)}


def _picture_in_text(config: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    patches = (_SIZE // config.vision_config.patch_size) ** 2
    ids = torch.cat([torch.full((1, patches), config.image_token_id), _ids(config, rng, 8)], 1)
    return {"input_ids": ids, **_image(config, rng)}


def _patches(config: Any, rng: torch.Generator) -> dict[str, torch.Tensor]:
    vision = config.vision_config
    inner = 3 * vision.temporal_patch_size * vision.patch_size**2
    ids = torch.cat([torch.full((1, 4), config.image_token_id), _ids(config, rng, 8)], 1)
    return {
        "input_ids": ids,
        "pixel_values": torch.randn(16, inner, generator=rng),
        "image_grid_thw": torch.tensor([[1, 4, 4]]),
        "mm_token_type_ids": (ids == config.image_token_id).int(),
    }


_WAVE = {
    "conv_dim": (32, 32),
    "conv_stride": (5, 4),
    "conv_kernel": (10, 4),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
    "mask_time_prob": 0.0,
}
_WHISPER = {"num_mel_bins": 8, "max_source_positions": 24, "max_target_positions": 64, "decoder_start_token_id": 1}
_HIERARCHY = {"depths": [2, 2], "embed_dim": 64, "num_heads": [2, 4], "window_size": 2, "patch_size": 4}
_TOWER = {"image_size": _SIZE, "patch_size": 8, "projection_dim": 64}
_CLIP = {"projection_dim": 64, "text_config": {"eos_token_id": 389}, "vision_config": _TOWER}
KINDS: dict[str, tuple[str, Maker, dict[str, Any]]] = {
    "AlbertModel": ("albert", _text, {"num_hidden_groups": 1}),
    "BertModel": ("bert", _text, {}),
    "BertForMaskedLM": ("bert", _text, {}),
    "BertForSequenceClassification": ("bert", _text, {}),
    "RobertaModel": ("roberta", _text, {}),
    "XLMRobertaForTokenClassification": ("xlm-roberta", _text, {}),
    "DistilBertModel": ("distilbert", _text, {"dim": 64, "hidden_dim": 128}),
    "MPNetModel": ("mpnet", _text, {}),
    "DebertaV2Model": ("deberta-v2", _text, {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}),
    "ElectraForPreTraining": ("electra", _text, {}),
    "ModernBertModel": ("modernbert", _text, {"global_attn_every_n_layers": 2}),
    "EuroBertModel": ("eurobert", _text, {}),
    "LlamaForSequenceClassification": ("llama", _text, {}),
    "Qwen3Model": ("qwen3", _text, {}),
    "T5EncoderModel": ("t5", _text, {"d_ff": 128, "d_kv": 16, "is_encoder_decoder": False}),
    "T5ForConditionalGeneration": ("t5", _both, {"d_ff": 128, "d_kv": 16}),
    "BartForConditionalGeneration": ("bart", _both, {}),
    "PegasusForConditionalGeneration": ("pegasus", _both, {}),
    "M2M100Model": ("m2m_100", _both, {}),
    "ViTForImageClassification": ("vit", _image, {}),
    "DeiTModel": ("deit", _image, {}),
    "BeitModel": ("beit", _image, {}),
    "SwinModel": ("swin", _image, _HIERARCHY),
    "ConvNextModel": (
        "convnext",
        _image,
        {"layer_scale_init_value": 1.0, "depths": [1, 1], "hidden_sizes": [64, 64], "num_stages": 2},
    ),
    "SegformerForSemanticSegmentation": (
        "segformer",
        _image,
        {
            "num_encoder_blocks": 2,
            "depths": [1, 1],
            "sr_ratios": [2, 1],
            "hidden_sizes": [64, 64],
            "patch_sizes": [7, 3],
            "strides": [4, 2],
            "num_attention_heads": [2, 2],
            "mlp_ratios": [2, 2],
            "decoder_hidden_size": 64,
        },
    ),
    "CLIPModel": ("clip", _pair, _CLIP),
    "CLIPVisionModelWithProjection": ("clip_vision_model", _image, _TOWER),
    "SiglipModel": ("siglip", _pair, {"vision_config": _TOWER}),
    "LlavaForConditionalGeneration": (
        "llava",
        _picture_in_text,
        {
            "vision_config": {**_TOWER, "model_type": "clip_vision_model"},
            "text_config": {"model_type": "llama"},
            "image_token_id": 400,
        },
    ),
    "Qwen2VLForConditionalGeneration": (
        "qwen2_vl",
        _patches,
        {
            "text_config": {"rope_parameters": {"rope_type": "default", "mrope_section": [4, 2, 2]}},
            "vision_config": {"depth": 2, "embed_dim": 64, "hidden_size": 64, "num_heads": 4, "mlp_ratio": 2},
            "image_token_id": 400,
            "video_token_id": 401,
            "vision_start_token_id": 402,
            "vision_end_token_id": 403,
        },
    ),
    "BlipForConditionalGeneration": (
        "blip",
        _pair,
        {"text_config": {"encoder_hidden_size": 64, "is_decoder": True}, "vision_config": {**_TOWER, "patch_size": 8}},
    ),
    "Wav2Vec2ForCTC": ("wav2vec2", _sound, _WAVE),
    "HubertModel": ("hubert", _sound, _WAVE),
    "WavLMModel": ("wavlm", _sound, _WAVE),
    "WhisperForConditionalGeneration": ("whisper", _spectrum, _WHISPER),
    "WhisperModel": ("whisper", _spectrum, _WHISPER),
}


def config(name: str) -> Any:
    """Return the configuration of a tiny model of a class."""
    kind, _, settings = KINDS[name]
    made = CONFIG_MAPPING[kind]
    found = zoo._settings(made, settings)
    if "is_decoder" in found and "is_decoder" not in settings:
        found["is_decoder"] = False
    return made(**found)


def write(folder: Path, name: str, dtype: torch.dtype = torch.float32) -> Path:
    """Write a folder with a model of a class."""
    torch.manual_seed(0)
    model = getattr(transformers, name)._from_config(config(name))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                parameter.normal_(0, 0.08)
    model.to(dtype).save_pretrained(folder)
    return folder


def samples(name: str, count: int = 8, seed: int = 1) -> Samples:
    """Return samples of a class's inputs."""
    rng = torch.Generator().manual_seed(seed)
    made = config(name)
    return Samples.of(KINDS[name][1](made, rng) for _ in range(count))
