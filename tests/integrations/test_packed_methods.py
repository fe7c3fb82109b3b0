"""Copies, pickles, casts and new weights work for packed models as for other torch models."""

import copy
import io
import pickle

import pytest
import torch

import squeeze
from tests.integrations.test_packed import MAKERS, load, staying
from tests.makers.hf_models import IDS

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

KINDS = ("dense", "experts", "fused experts", "turned experts")
CASTS = {
    "to": lambda model, dtype: model.to(dtype),
    "of modules": lambda model, dtype: model.apply(lambda module: torch.nn.Module.to(module, dtype)),
    "type": lambda model, dtype: model.type(dtype),
}


@pytest.fixture(scope="module", params=KINDS)
def folders(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    MAKERS[request.param](folder / "model")
    squeeze.pack(folder / "model", folder / "packed")
    return folder


def logits(model):
    with torch.inference_mode():
        return model(IDS % model.config.vocab_size).logits


@pytest.fixture
def packed(folders):
    model = load(folders / "packed")
    assert list(staying(model))
    return model


@pytest.fixture
def plain(folders):
    return transformers.AutoModelForCausalLM.from_pretrained(folders / "model").eval()


def saved(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("way", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model)), saved])
def test_a_copy_of_a_used_model_computes_the_same(packed, way):
    wanted = logits(packed)
    copied = way(packed)
    assert torch.equal(logits(copied), wanted) and list(staying(copied)) == list(staying(packed))
    with torch.no_grad():
        for one in copied.parameters():
            one.zero_()
    assert torch.equal(logits(packed), wanted)


def test_a_part_is_copied_alone(packed):
    wanted = logits(packed)
    name, _, leaf = next(staying(packed)).rpartition(".")
    part = packed.get_submodule(name)
    copied = copy.deepcopy(part)
    assert type(copied) is type(part) and torch.equal(getattr(copied, leaf)[1], getattr(part, leaf)[1])
    assert torch.equal(logits(packed), wanted)


@pytest.mark.parametrize("cast", CASTS)
def test_a_cast_changes_what_weights_are_decoded_to(packed, plain, cast):
    sizes = {name: tensor.nbytes for name, tensor in packed.named_parameters() if tensor.dtype == torch.uint8}
    dtype = torch.float32 if plain.dtype == torch.bfloat16 else torch.bfloat16
    wanted, found = logits(plain.to(dtype)), logits(CASTS[cast](packed, dtype))
    assert wanted.dtype == found.dtype == dtype and torch.equal(found, wanted)
    assert sizes == {name: tensor.nbytes for name, tensor in packed.named_parameters() if name in sizes}


def test_a_layer_with_another_weight_is_a_plain_one(tmp_path):
    MAKERS["dense"](tmp_path / "model")
    squeeze.pack(tmp_path / "model", tmp_path / "packed")
    packed = load(tmp_path / "packed")
    plain = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model").eval()
    for model in (packed, plain):
        for layer in (model.get_input_embeddings(), model.lm_head, model.model.layers[0].mlp.up_proj):
            layer.weight = torch.nn.Parameter(layer.weight.detach().clone() * 2)
    assert torch.equal(logits(packed), logits(plain))
    assert type(packed.get_input_embeddings()) is torch.nn.Embedding and isinstance(packed.lm_head, torch.nn.Linear)
    assert "lm_head.weight" not in list(staying(packed))


def test_embeddings_may_grow(tmp_path):
    MAKERS["dense"](tmp_path / "model")
    squeeze.pack(tmp_path / "model", tmp_path / "packed")
    packed = load(tmp_path / "packed")
    before = logits(packed)
    packed.resize_token_embeddings(before.shape[-1] + 8, mean_resizing=False)
    assert torch.equal(logits(packed)[..., : before.shape[-1]], before)
