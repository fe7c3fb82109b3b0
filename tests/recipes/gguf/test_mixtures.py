"""Mixtures of block types have the types that llama.cpp's own quantiser gives to every tensor."""

import pytest
import torch

import squeeze
from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.errors import SqueezeError
from squeeze.integrations.gguf.export import Export
from squeeze.recipes.gguf.mixtures import BASES, Place, type_of_place
from squeeze.recipes.options import MIXTURES
from tests.makers import gguf_models

pytest.importorskip("transformers", reason="transformers is not installed")

TOKENS = torch.randint(0, 390, (16, 40), generator=torch.Generator().manual_seed(1))
SIZES = {"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 4, "num_hidden_layers": 8}


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return gguf_models.save("llama", tmp_path_factory.mktemp("models") / "m", num_key_value_heads=1, **SIZES)


def test_every_mixture_can_be_asked_for():
    assert tuple(BASES) == MIXTURES


@pytest.mark.parametrize(
    ("mixture", "method"), [("Q2_K", "rtn"), ("Q4_K_M", "rtn"), pytest.param("IQ2_XXS", "gptq", marks=pytest.mark.slow)]
)
def test_types_are_those_of_llama_cpp(tmp_path, llama, mixture, method):
    llama_cpp = pytest.importorskip("llama_cpp")
    Export.of(Checkpoint.open(llama)).write(tmp_path / "floats.gguf")
    kind, calibrated = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{mixture}"), method == "gptq"
    gguf_models.quantise(tmp_path / "floats.gguf", tmp_path / "theirs.gguf", kind, calibrated)
    given = {"calibration": TOKENS[:4], "refine": 0} if calibrated else {}
    squeeze.quantize(llama, method, out=tmp_path / "ours.gguf", format="gguf", type=mixture, **given)
    assert gguf_models.types_of(tmp_path / "ours.gguf") == gguf_models.types_of(tmp_path / "theirs.gguf")


@pytest.mark.slow
@pytest.mark.parametrize("method", ["rtn", "gptq"])
@pytest.mark.parametrize("mixture", MIXTURES)
def test_types_of_all_mixtures_are_those_of_llama_cpp(tmp_path, llama, mixture, method):
    if method == "rtn" and mixture in ("Q2_K_S", "IQ2_M", "IQ2_S", "IQ2_XS", "IQ2_XXS"):
        pytest.skip("llama.cpp asks for an importance matrix")
    test_types_are_those_of_llama_cpp(tmp_path, llama, mixture, method)


@pytest.mark.parametrize(
    ("mixture", "place", "kind"),
    [
        ("Q4_K_M", Place("attn_v", 5, 32), "q4_k"),
        ("Q4_K_M", Place("attn_v", 6, 32), "q6_k"),
        ("Q4_K_M", Place("ffn_down", 3, 32), "q6_k"),
        ("Q4_K_M", Place("ffn_up", 0, 32), "q4_k"),
        ("Q3_K_S", Place("attn_v", 1, 80, 8), "q5_k"),
        ("Q4_K_S", Place("attn_v", 9, 32, 4, 8), "q8_0"),
        ("Q4_0", Place("ffn_down", 0, 32), "q4_1"),
        ("Q4_0", Place("ffn_down", 0, 32, calibrated=False), "q4_0"),
        ("IQ4_XS", Place("ffn_down", 0, 32), "iq4_xs"),
        ("Q2_K_S", Place("attn_v", 9, 32, 4), "q4_k"),
        ("IQ3_S", Place("attn_v", 9, 32, 4), "q4_k"),
        ("IQ3_S", Place("attn_v", 9, 32, 1), "iq3_s"),
        ("IQ3_M", Place("attn_v", 9, 32, 1), "q4_k"),
        ("IQ3_M", Place("ffn_down", 3, 32), "q4_k"),
        ("IQ3_M", Place("ffn_down", 4, 32), "iq3_s"),
        ("IQ3_M", Place("ffn_down", 6, 32, 4, 8), "q4_k"),
        ("IQ3_M", Place("attn_output", 9, 32), "q4_k"),
        ("IQ2_M", Place("attn_v", 9, 32, 4), "q4_k"),
        ("IQ2_M", Place("attn_v", 9, 32), "iq3_s"),
        ("IQ2_M", Place("attn_k", 9, 32, 4, 8), "q4_k"),
        ("IQ2_M", Place("ffn_down", 3, 32), "iq3_s"),
        ("IQ2_M", Place("ffn_up", 3, 32), "iq2_s"),
        ("IQ2_M", Place("attn_output", 9, 32), "iq3_s"),
        ("IQ2_XS", Place("attn_v", 9, 32), "q2_k"),
        ("IQ2_XS", Place("attn_output", 9, 32), "iq2_xs"),
        ("IQ2_XXS", Place("attn_output", 9, 32, 4, 8), "q5_k"),
        ("IQ2_XXS", Place("ffn_down", 3, 32), "q2_k"),
        ("IQ3_XXS", Place("attn_v", 9, 32, 1), "iq3_xxs"),
        ("IQ3_XXS", Place("attn_v", 9, 32, 1, calibrated=False), "iq3_s"),
        ("IQ3_XXS", Place("ffn_down", 3, 32), "iq3_xxs"),
        ("IQ3_XXS", Place("ffn_down", 4, 32, calibrated=False), "q3_k"),
        ("IQ3_XXS", Place("attn_q", 9, 32), "iq2_s"),
        ("IQ3_XS", Place("ffn_up", 3, 32), "iq3_s"),
        ("IQ3_XS", Place("ffn_up", 4, 32), "iq3_xxs"),
    ],
)
def test_places_get_their_types(mixture, place, kind):
    assert type_of_place(mixture, place) == kind


@pytest.mark.slow
def test_the_smallest_mixture_has_its_own_types_outside_of_the_blocks(tmp_path, llama):
    squeeze.quantize(llama, "rtn", out=tmp_path / "out.gguf", format="gguf", type="IQ2_M")
    found = gguf_models.types_of(tmp_path / "out.gguf")
    assert (found["token_embd.weight"], found["output.weight"]) == ("IQ3_S", "Q5_K")
    assert (found["blk.1.ffn_up.weight"], found["blk.1.attn_v.weight"]) == ("IQ2_S", "Q4_K")
    gguf_models.check_network(tmp_path / "out.gguf", llama)


@pytest.mark.parametrize(
    ("kind", "options", "types"),
    [
        ("llama", {"embeddings": 4, "head": 8}, ("Q4_K", "Q8_0")),
        ("gemma", {"embeddings": 4}, ("Q4_K", None)),
    ],
)
def test_types_of_embedding_and_head_are_chosen(tmp_path, kind, options, types):
    folder, out = gguf_models.save(kind, tmp_path / "model"), tmp_path / "out.gguf"
    given = {"format": "gguf", "type": "q8_0", "calibration": TOKENS, **options}
    report = squeeze.quantize(folder, "gptq", out=out, **given)
    found = gguf_models.types_of(out)
    assert (found["token_embd.weight"], found.get("output.weight")) == types
    methods = {layer.name: layer.method for layer in report.layers}
    bits = {"Q4_K": 4.5, "Q8_0": 8.5}
    assert list(report.outer.values()) == pytest.approx([bits[kind] for kind in types if kind], abs=0.01)
    assert methods["model.embed_tokens"] == ("gptq" if types[1] is None else "rtn")
    gguf_models.check_network(out, folder)


@pytest.mark.slow
def test_the_size_of_a_file_counts_the_chosen_types(tmp_path):
    folder, out = gguf_models.save("llama", tmp_path / "model"), tmp_path / "out.gguf"
    given = {"format": "gguf", "type": "auto", "calibration": TOKENS, "embeddings": 8, "head": 8}
    with pytest.raises(SqueezeError, match=r"expected at least \d+ bytes") as error:
        squeeze.quantize(folder, "rtn", out=out, target_bytes=100, **given)
    least = int(str(error.value).split("at least ")[1].split()[0])
    squeeze.quantize(folder, "rtn", out=out, target_bytes=least + 1000, **given)
    assert least - 2000 < out.stat().st_size <= least + 1000
