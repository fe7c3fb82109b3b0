"""Packed folders load with every Auto class: encoders, models of images and of sound, and what has a head."""

import pytest
import torch

import squeeze

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
integration = pytest.importorskip("squeeze.integrations.transformers")

IDS = torch.randint(6, 199, (2, 9), generator=torch.Generator().manual_seed(1))
IMAGE = torch.randn((2, 3, 16, 16), generator=torch.Generator().manual_seed(2))
LAYERS = {"hidden_size": 64, "intermediate_size": 512, "num_hidden_layers": 1, "num_attention_heads": 4}
TEXT = {"vocab_size": 199, **LAYERS}
SEEN = {**LAYERS, "image_size": 16, "patch_size": 8}
LETTERS = {"input_ids": IDS}


def bert(name):
    return getattr(transformers, name)(transformers.BertConfig(**TEXT)), LETTERS


def t5():
    config = transformers.T5Config(
        vocab_size=199, d_model=64, d_kv=16, d_ff=512, num_layers=1, num_heads=4, decoder_start_token_id=0
    )
    return transformers.T5ForConditionalGeneration(config), {"input_ids": IDS, "decoder_input_ids": IDS}


def vit():
    return transformers.ViTForImageClassification(transformers.ViTConfig(**SEEN)), {"pixel_values": IMAGE}


def clip():
    text = {**TEXT, "eos_token_id": 198}
    config = transformers.CLIPConfig(text_config=text, vision_config=SEEN, projection_dim=32)
    return transformers.CLIPModel(config), {**LETTERS, "pixel_values": IMAGE}


def llava():
    """Make a LLaVA model, whose tensors have other names in checkpoints than in memory."""
    config = transformers.LlavaConfig(
        text_config=transformers.LlamaConfig(**TEXT),
        vision_config=transformers.CLIPVisionConfig(**SEEN),
        image_token_id=5,
        vision_feature_layer=-1,
    )
    ids = torch.cat([torch.full((2, 4), 5), IDS], 1)
    return transformers.LlavaForConditionalGeneration(config), {"input_ids": ids, "pixel_values": IMAGE}


def whisper():
    """Make a Whisper model, which is initialised by the shapes of its tensors."""
    config = transformers.WhisperConfig(
        vocab_size=199, num_mel_bins=8, d_model=64, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=512,
        decoder_ffn_dim=512, encoder_attention_heads=4, decoder_attention_heads=4, max_source_positions=20,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip
    sound = torch.randn((2, 8, 40), generator=torch.Generator().manual_seed(3))
    return transformers.WhisperForConditionalGeneration(config), {"input_features": sound, "decoder_input_ids": IDS}


MODELS = {
    "AutoModel": lambda: bert("BertModel"),
    "AutoModelForMaskedLM": lambda: bert("BertForMaskedLM"),
    "AutoModelForSequenceClassification": lambda: bert("BertForSequenceClassification"),
    "AutoModelForTokenClassification": lambda: bert("BertForTokenClassification"),
    "AutoModelForQuestionAnswering": lambda: bert("BertForQuestionAnswering"),
    "AutoModelForSeq2SeqLM": t5,
    "AutoModelForImageClassification": vit,
    "AutoModelForZeroShotImageClassification": clip,
    "AutoModelForImageTextToText": llava,
    "AutoModelForSpeechSeq2Seq": whisper,
}


@pytest.mark.parametrize(
    ("auto", "dtype"),
    [*((auto, torch.bfloat16) for auto in MODELS)]
    + [
        (auto, torch.float16)
        for auto in ("AutoModelForMaskedLM", "AutoModelForSeq2SeqLM", "AutoModelForImageTextToText")
    ],
)
def test_outputs_are_those_of_the_original(tmp_path, auto, dtype):
    torch.manual_seed(1)
    model, inputs = MODELS[auto]()
    model.to(dtype).save_pretrained(tmp_path / "model")
    squeeze.pack(tmp_path / "model", tmp_path / "packed")
    inputs = {name: value.to(dtype) if value.is_floating_point() else value for name, value in inputs.items()}
    load, outputs = getattr(transformers, auto).from_pretrained, []
    for name in ("model", "packed"):
        loaded, report = load(tmp_path / name, output_loading_info=True)
        assert not report["missing_keys"] and not report["unexpected_keys"]
        with torch.no_grad():
            outputs.append([value for value in loaded(**inputs).to_tuple() if isinstance(value, torch.Tensor)])
    assert len(outputs[0]) == len(outputs[1]) > 0
    assert all(torch.equal(*pair) for pair in zip(*outputs, strict=True))
    if "Image" not in auto:  # those are small
        assert integration.memory_of(loaded)["tensors"] < integration.memory_of(loaded)["decoded"]


def test_a_model_in_a_folder_of_a_pipeline(tmp_path):
    config = transformers.CLIPTextConfig(**{**TEXT, "eos_token_id": 198})
    model = transformers.CLIPTextModel(config).bfloat16()
    model.save_pretrained(tmp_path / "model" / "text_encoder")
    (tmp_path / "model" / "model_index.json").write_text("{}")
    squeeze.pack(tmp_path / "model", tmp_path / "packed")
    packed = transformers.CLIPTextModel.from_pretrained(tmp_path / "packed", subfolder="text_encoder", dtype="auto")
    assert integration.memory_of(packed)["tensors"] < integration.memory_of(packed)["decoded"]
    with torch.no_grad():
        assert torch.equal(model.eval()(IDS).last_hidden_state, packed(IDS).last_hidden_state)
