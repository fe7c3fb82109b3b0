"""Attention over coded layers: every path against the plain definition, and within models."""

import pytest
import torch
import transformers

from squeeze.errors import PolicyError
from squeeze.kv import KIVI, FullPrecision, QuantizedKVCache, attention
from squeeze.kv.attention import cpu, tiles
from squeeze.kv.contract import CACHE
from squeeze.kv.evict import SnapKV
from squeeze.kv.grouped import GroupedCoder
from squeeze.kv.scores import Scores, additive_mask
from squeeze.kv.view import LayerView
from tests.makers import zoo
from tests.makers.kv_layers import CLOSE, CODERS, Coded, layer_of, query_of
from tests.makers.kv_models import ASKING, MODELS, tokens


@pytest.mark.parametrize("coder", list(CODERS))
def test_decoding_step_on_the_cpu(coder):
    view = layer_of(Coded(CODERS[coder], CODERS[coder]))._view()
    query = query_of()
    assert cpu.fits(query, view)
    expected = tiles.reference_attend(query, view, None, 0.3)
    torch.testing.assert_close(cpu.attend(query, view, None, 0.3), expected, **CLOSE)
    torch.testing.assert_close(tiles.attend(query, view, None, 0.3), expected, **CLOSE)


def test_heads_coded_differently_and_a_mask():
    view = layer_of(Coded(GroupedCoder(2, "tokens"), GroupedCoder(3, "channels"), heads=(0, 2)))._view()
    mask = torch.rand(2, 1, 1, view.length) < 0.7
    bias = additive_mask(mask, 1, view.length, True, mask)
    expected = tiles.reference_attend(query_of(), view, bias, 0.3)
    assert not torch.allclose(expected, tiles.reference_attend(query_of(), view, None, 0.3))
    for path in (cpu, tiles):
        torch.testing.assert_close(path.attend(query_of(), view, bias, 0.3), expected, **CLOSE)


@pytest.mark.parametrize("sliding_window", [None, 50])
def test_several_queries_in_tiles(sliding_window, monkeypatch):
    monkeypatch.setattr(tiles, "_TILE", 32)
    layer = layer_of(Coded(CODERS["4 bits, tokens, even"], GroupedCoder(2, "channels")), sliding_window=sliding_window)
    view = layer._view(0 if sliding_window is None else layer.get_seq_length() - sliding_window)
    bias = additive_mask(None, 7, view.length, True, query_of())
    expected = tiles.reference_attend(query_of(7), view, bias, 0.3)
    torch.testing.assert_close(tiles.attend(query_of(7), view, bias, 0.3), expected, **CLOSE)


@pytest.mark.parametrize("name", list(MODELS))
def test_models_give_the_same_with_either_attention(name):
    ids, mask = tokens(2, 60), torch.ones(2, 60, dtype=torch.long)
    mask[1, :7] = 0
    found = []
    for native in (False, True):
        model = MODELS[name]()
        if native:
            attention.install(model)
        cache = QuantizedKVCache(model.config, KIVI(bits=4, group=8, sinks=2, window=8))
        with torch.no_grad():
            steps = [model(ids[:, :50], attention_mask=mask[:, :50], **{CACHE: cache}).logits]
            steps += [model(ids[:, 50:54], attention_mask=mask[:, :54], **{CACHE: cache}).logits]
            steps += [
                model(ids[:, at : at + 1], attention_mask=mask[:, : at + 1], **{CACHE: cache}).logits
                for at in range(54, 60)
            ]
        assert all(layer.blocks for layer in cache.packed_layers)
        found.append(torch.cat(steps, 1)[mask.bool()])
    torch.testing.assert_close(found[1], found[0], rtol=1e-3, atol=1e-3)  # logits of weights times 4


@torch.no_grad()
def test_other_caches_go_on_as_before():
    model, ids = MODELS["llama"](), tokens()
    expected = model(ids).logits
    attention.install(model)
    torch.testing.assert_close(model(ids).logits, expected)
    cache = QuantizedKVCache(model.config, FullPrecision())
    torch.testing.assert_close(model(ids, **{CACHE: cache}).logits, expected)


@torch.no_grad()
def test_no_layer_is_decoded_where_attention_reads_it(monkeypatch):
    model = MODELS["llama"]()
    attention.install(model)
    cache = QuantizedKVCache(model.config, KIVI(bits=4, group=8, sinks=2, window=8))
    model(tokens(length=50), **{CACHE: cache})
    monkeypatch.setattr(GroupedCoder, "decode", None)
    model(tokens(length=1), **{CACHE: cache})


TRITON = {  # keys, values
    "KIVI of 4 bits": (GroupedCoder(4, "tokens"), GroupedCoder(4, "channels", 16)),
    "KIVI of 2 bits": (GroupedCoder(2, "tokens"), GroupedCoder(2, "channels", 16)),
    "KIVI of 8 bits": (GroupedCoder(8, "tokens"), GroupedCoder(8, "channels")),
    "1 bit, more groups than planes": (GroupedCoder(1, "tokens"), GroupedCoder(8, "channels", 8)),
    "groups within a block, and 1 bit": (GroupedCoder(4, "tokens", 16), GroupedCoder(1, "channels")),
    "rotated": (GroupedCoder(2, "channels", rotate=True), GroupedCoder(4, "channels", rotate=True)),
    "rotated, on points": (
        GroupedCoder(4, "channels", rotate=True, points="normal"),
        GroupedCoder(2, "channels", rotate=True, points="normal"),
    ),
    "values along tokens": (GroupedCoder(8, "channels", 8), GroupedCoder(2, "tokens")),
    "both along tokens": (GroupedCoder(4, "tokens"), GroupedCoder(4, "tokens")),
}


class Wide(Coded):
    block = 32


@pytest.mark.parametrize("name", list(TRITON))
def test_triton_kernel(name, monkeypatch):
    """Splits of two blocks and one, heads that fill no tile, sinks and a window that fill none either."""
    kernel = pytest.importorskip("squeeze.kv.attention.kernel", reason="triton is not installed")
    monkeypatch.setattr(kernel, "_PROGRAMS", 4)
    view = layer_of(Wide(*TRITON[name]), length=107, heads=2, size=32, value_size=32, batch=1)._view()
    query = query_of(heads=6, batch=1, size=32)
    assert kernel.fits(query, view, None) and view.blocks == 3
    expected = tiles.reference_attend(query, view, None, 0.3)
    torch.testing.assert_close(kernel.attend(query, view, 0.3), expected, **CLOSE)


@pytest.mark.parametrize("name", ["KIVI of 4 bits", "rotated", "groups within a block, and 1 bit"])
def test_triton_kernel_in_float16(name, monkeypatch):
    """Scaled queries and weights are rounded to it; codes are exact. No sinks, and more splits than go together."""
    kernel = pytest.importorskip("squeeze.kv.attention.kernel", reason="triton is not installed")
    monkeypatch.setattr(kernel, "_TOGETHER", 2)
    policy = Wide(*TRITON[name])
    policy.sinks = 0
    view = layer_of(policy, length=107, heads=1, size=32, value_size=32, batch=1)._view()
    query = query_of(heads=9, batch=1, size=32).to(torch.float16)
    expected = tiles.reference_attend(query.float(), view, None, 0.3)
    torch.testing.assert_close(kernel.attend(query, view, 0.3).float(), expected, rtol=3e-3, atol=3e-3)


class Noted:
    """A stand-in for a kernel that collects the options of its launches."""

    def __getitem__(self, grid):
        return lambda *arguments, **constants: vars(self).update(constants)


@pytest.mark.parametrize(
    ("size", "dtype", "warps"),
    [(256, torch.bfloat16, 8), (128, torch.float32, 8), (64, torch.float32, 4), (256, torch.float32, 8)],
)
def test_large_tiles_have_more_warps(size, dtype, warps, monkeypatch):
    """Four warps do not have enough registers for these."""
    kernel = pytest.importorskip("squeeze.kv.attention.kernel", reason="triton is not installed")
    policy = Coded(GroupedCoder(4, "tokens"), GroupedCoder(4, "channels", 32))
    policy.block = 64
    view = layer_of(policy, length=140, heads=1, size=size, value_size=size, batch=1)._view()
    plain = Noted()
    monkeypatch.setattr(kernel, "_decode", plain)
    kernel.coded(query_of(batch=1, size=size).to(dtype), view, 0.1)
    assert plain.num_warps == warps


@pytest.mark.parametrize(("batch", "blocks", "splits"), [(8, 510, 16), (1, 63, 63), (1, 2046, 121), (200, 510, 1)])
def test_programs_of_the_triton_kernel(batch, blocks, splits):
    """About a thousand, for eight KV heads, or one a block."""
    kernel = pytest.importorskip("squeeze.kv.attention.kernel", reason="triton is not installed")
    exact = [torch.empty(batch, 8, 0, 128, device="meta")] * 2
    view = LayerView(exact, [], exact, blocks, 64, 0, 0)
    query = torch.empty(batch, 32, 1, 128, device="meta")
    assert kernel.room(query, view).tops.shape == (batch, 8, splits, 4)


def test_triton_kernel_takes_what_it_can():
    kernel = pytest.importorskip("squeeze.kv.attention.kernel", reason="triton is not installed")
    view = layer_of(Coded(GroupedCoder(4, "tokens"), GroupedCoder(4, "channels")))._view()
    assert not kernel.fits(query_of(2), view, None)
    assert not kernel.fits(query_of(), view, torch.zeros(1, 1, 1, view.length))
    others = (
        (GroupedCoder(3, "tokens"), GroupedCoder(4, "channels")),
        (GroupedCoder(1, "tokens"), GroupedCoder(4, "channels")),  # rows of half a word
        (GroupedCoder(4, "tokens"), GroupedCoder(8, "tokens")),
    )
    for coders in others:
        assert not kernel.fits(query_of(), layer_of(Coded(*coders))._view(), None)


@pytest.mark.cuda
@pytest.mark.parametrize("name", list(TRITON))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_on_a_gpu(name, dtype):
    layer = layer_of(Wide(*TRITON[name]), length=1000, size=64, value_size=64)
    layer._to("cuda")
    view, query = layer._view(), query_of(size=64).cuda().to(dtype)
    expected = tiles.reference_attend(query.float(), view, None, 0.1)
    close = 1e-3 if dtype == torch.float32 else 3e-2
    for attend in (attention.attend, tiles.attend):
        torch.testing.assert_close(attend(query, view, None, 0.1).float(), expected, rtol=close, atol=close)


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_several_queries_and_a_mask_on_a_gpu(dtype):
    layer = layer_of(Coded(GroupedCoder(4, "tokens"), GroupedCoder(3, "channels"), (1,)), length=1000, size=64)
    layer._to("cuda")
    view, query = layer._view(), query_of(7, size=64).cuda().to(dtype)
    bias = additive_mask(None, 7, view.length, True, query)
    expected = tiles.reference_attend(query.float(), view, bias, 0.1)
    close = 1e-3 if dtype == torch.float32 else 3e-2
    torch.testing.assert_close(attention.attend(query, view, bias, 0.1).float(), expected, rtol=close, atol=close)


HOW = {
    "softcap": Scores(softcap=1.5),
    "sinks": Scores(sinks=torch.tensor([2.0, -1.0, 0.5, 3.0, 0.0, 1.0])),
    "both": Scores(softcap=1.5, sinks=torch.tensor([2.0, -1.0, 0.5, 3.0, 0.0, 1.0])),
}


@pytest.mark.parametrize("how", list(HOW))
@pytest.mark.parametrize("queries", [1, 5])
def test_softcap_and_sinks_as_they_are_defined(how, queries, monkeypatch):
    """Every implementation equals the definition, written out with a column for the sink."""
    monkeypatch.setattr(tiles, "_TILE", 32)
    view, query = (
        layer_of(Coded(CODERS["4 bits, tokens, even"], GroupedCoder(2, "channels")))._view(),
        query_of(queries),
    )
    bias = additive_mask(None, queries, view.length, True, query)
    keys, values = (x.repeat_interleave(2, 1) for x in view.dense())
    scores = query @ keys.transpose(-1, -2) * 0.3
    if HOW[how].softcap:
        scores = 1.5 * (scores / 1.5).tanh()
    scores = (scores if bias is None else scores + bias).exp()
    sinks = HOW[how].sinks
    mass = scores.sum(-1, keepdim=True) + (0 if sinks is None else sinks.exp().view(1, -1, 1, 1))
    expected = scores / mass @ values
    implementations = [tiles.reference_attend, tiles.attend, attention.attend]
    for attend in [*implementations, *([cpu.attend] if queries == 1 else [])]:
        torch.testing.assert_close(attend(query, view, bias, 0.3, HOW[how]), expected, **CLOSE)


@pytest.mark.parametrize("name", list(ASKING))
def test_models_that_ask_for_more_give_the_same_with_either_attention(name):
    """gpt-oss has sinks, Gemma 2 a softcap, DeepSeek V3 caches a latent, Falcon knows no registry."""
    ids, found = tokens(2, 60), []
    for native in (False, True):
        model = ASKING[name]()
        plain = model(ids).logits
        if native:
            attention.install(model)
            torch.testing.assert_close(model(ids).logits, plain)
        cache = QuantizedKVCache(model.config, KIVI(bits=4, group=8, sinks=2, window=8))
        with torch.no_grad():
            steps = [model(x, **{CACHE: cache}).logits for x in ids.split([50, 4, 1, 1, 1, 1, 1, 1], 1)]
        assert all(layer.coded_tokens for layer in cache.packed_layers)
        assert {layer.is_read for layer in cache.packed_layers} == {native and name in ("gpt_oss", "gemma2", "doge")}
        found.append(torch.cat(steps, 1))
        assert not torch.allclose(found[-1], plain, atol=1e-3)
    torch.testing.assert_close(found[1], found[0], rtol=1e-3, atol=1e-3)


@torch.no_grad()
def test_a_model_that_has_only_its_own_attention_keeps_it():
    """GIT's decoder adds masks to scores; the other part of its file, which sees, takes any attention."""
    torch.manual_seed(0)
    model, ids = transformers.AutoModelForCausalLM.from_config(zoo.config("git")).eval(), tokens(2, 40)
    expected = model(ids).logits
    attention.install(model)
    cache = QuantizedKVCache(model.config, FullPrecision())
    torch.testing.assert_close(model(ids, **{CACHE: cache}).logits, expected)


@torch.no_grad()
def test_what_is_not_honoured_goes_to_the_models_own_attention():
    model, ids = MODELS["llama"](), tokens(2, 40)
    expected = model(ids).logits
    attention.install(model)
    cache = QuantizedKVCache(model.config, FullPrecision())
    with pytest.warns(UserWarning, match=r"LlamaAttention uses attention options .* not support \(indices\)"):
        found = [model(x, **{CACHE: cache}, indices=torch.zeros(1)).logits for x in ids.split(20, 1)]
    torch.testing.assert_close(torch.cat(found, 1), expected)
    assert not any(layer.is_read for layer in cache.packed_layers)
    policy = SnapKV(KIVI(4, group=8, sinks=2, window=8), select=16)
    cache = QuantizedKVCache(model.config, policy)
    model(ids, **{CACHE: cache}, indices=torch.zeros(1))  # says it only once
    with pytest.raises(PolicyError, match="looks at queries, which the attention of this model does not show"):
        model(ids[:, :1], **{CACHE: cache}, indices=torch.zeros(1))
