"""Eviction around other policies: what is kept, what is counted, and that generation goes on."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import torch

from squeeze.errors import PolicyError
from squeeze.kv import KIVI, FullPrecision, QuantizedKVCache, Rotated, attention, evict
from squeeze.kv.archive.policy import Archive
from squeeze.kv.attention import cpu, tiles
from squeeze.kv.contract import CACHE
from squeeze.kv.evict import AdaKV, SinksAndWindow, SnapKV, SoftPrune
from squeeze.kv.layer import PackedLayer
from squeeze.kv.scores import additive_mask
from squeeze.kv.view import take_view
from tests.makers.kv_models import llama, mistral, tokens

INNER = KIVI(8, group=8, sinks=2, window=8)


def test_sinks_and_window_stay_and_tokens_between_are_limited():
    layer, states = PackedLayer(SinksAndWindow(INNER, limit=20), 0), torch.randn(2, 1, 2, 200, 8)
    for at in range(200):
        layer.update(*states[:, :, :, at : at + 1])
        assert layer.get_seq_length() == at + 1
        assert layer.stored <= 2 + 24 + 16
        assert layer.get_mask_sizes(1) == (layer.stored + 1, layer.evicted)
    keys = layer.keys
    assert torch.equal(keys[:, :, :2], states[0, :, :, :2])
    torch.testing.assert_close(keys[:, :, 2:], states[0, :, :, layer.evicted + 2 :], rtol=0, atol=0.02)
    layer.crop(-20)
    assert layer.get_seq_length() == 180 and layer.stored == 180 - layer.evicted


def test_snapkv_keeps_what_the_last_queries_look_at():
    policy = SnapKV(INNER, select=16, observed=4, pool=1)
    layer = PackedLayer(policy, 0, native=lambda: True)
    keys, values = torch.randn(2, 1, 2, 100, 8)
    wanted = torch.arange(10, 42, 2)
    query = torch.ones(1, 4, 100, 8)
    keys[:, :, wanted] += 5
    view = take_view(*layer.update(keys, values))
    assert layer.blocks == 0
    view.observer(query)
    assert layer.get_seq_length() == 100 and layer.stored == 2 + 16 + 8 and layer.evicted == 74
    torch.testing.assert_close(layer.keys[:, :, 2:18], keys[:, :, wanted], rtol=0, atol=0.05)
    assert torch.equal(layer.values[:, :, 18:], values[:, :, 92:])


def test_queries_count_by_what_they_give_to_the_tokens_in_question():
    """Three of the queries look at a sink, and of the rest a little more at some tokens; one looks at others."""
    keys, wanted, others = torch.zeros(1, 1, 100, 8), torch.arange(10, 26), torch.arange(40, 56)
    query = torch.zeros(1, 1, 100, 8)
    keys[..., 0, 0], keys[..., others, 1], keys[..., wanted, 2] = 20, 8, 8
    query[..., 97:, 0], query[..., 97:, 1], query[..., 96, 2] = 8, 8, 4
    held = SimpleNamespace(index=0, sinks=(keys[:, :, :2],), residual=(keys[:, :, 2:],), choosable=90)
    for kind in (SnapKV, SoftPrune):
        chosen = kind(INNER, select=16, observed=4, pool=1).chosen_tokens(query, held)
        assert torch.equal(chosen[0, 0], wanted - 2)
    (chosen,) = AdaKV(INNER, select=16, observed=4, pool=1).chosen_by_heads(query, held)
    assert torch.equal(chosen[0], wanted - 2)


def test_softprune_keeps_all_and_some_exactly():
    policy = SoftPrune(INNER, select=16, observed=4, pool=1)
    layer = PackedLayer(policy, 0, native=lambda: True)
    keys, values = torch.randn(2, 1, 2, 100, 8)
    wanted = torch.arange(10, 42, 2)
    keys[:, :, wanted] += 5
    view = take_view(*layer.update(keys, values))
    view.observer(torch.ones(1, 4, 100, 8))
    assert layer.stored == layer.get_seq_length() == 100 and layer.evicted == 0 and layer.blocks == 9
    assert torch.equal(layer.values[:, :, 2:18], values[:, :, wanted])
    rest = [token for token in range(2, 92) if token not in wanted]
    torch.testing.assert_close(layer.values[:, :, 18:92], values[:, :, rest], rtol=0, atol=0.03)
    layer.update(torch.randn(1, 2, 60, 8), torch.randn(1, 2, 60, 8))
    assert layer.get_seq_length() == 160 and layer.sinks[0].shape[2] == 18


def test_eviction_alone_keeps_sinks_and_the_latest_tokens():
    layer, states = (
        PackedLayer(SinksAndWindow(FullPrecision(sinks=2, window=8), limit=20), 0),
        torch.randn(2, 1, 2, 60, 8),
    )
    for at in range(60):
        layer.update(*states[:, :, :, at : at + 1])
    assert layer.get_seq_length() == 60 and layer.stored == 30
    assert torch.equal(layer.keys, torch.cat([states[0, :, :, :2], states[0, :, :, 32:]], 2))


def test_layers_may_keep_different_numbers():
    model = llama()
    cache = QuantizedKVCache(model.config, SinksAndWindow(INNER, limit=(16, 32)))
    model(tokens(length=100), **{CACHE: cache})
    assert [layer.blocks * 8 for layer in cache.packed_layers] == [16, 32]
    with pytest.raises(PolicyError, match="eviction is given for 1 layers, and the model has more"):
        model(tokens(length=100), **{CACHE: QuantizedKVCache(model.config, SinksAndWindow(INNER, limit=(16,)))})


@pytest.mark.parametrize("kind", [llama, mistral])
@pytest.mark.parametrize(
    "wrapper",
    [SinksAndWindow(INNER, limit=16), SnapKV(INNER, select=16), SoftPrune(INNER, select=16),
     SnapKV(FullPrecision(sinks=2, window=8), select=16), AdaKV(INNER, select=16),
     AdaKV(FullPrecision(sinks=2, window=8), select=16)],
)  # fmt: skip
def test_generation_continues_after_eviction(kind, wrapper):
    model, ids = kind(), tokens(length=80)
    attention.install(model)
    cache = QuantizedKVCache(model.config, wrapper)
    options = {"max_new_tokens": 20, "do_sample": False, "attention_mask": torch.ones_like(ids)}
    assert model.generate(ids, **{CACHE: cache}, **options).shape[1] == 100
    if kind is llama:
        assert all(bool(layer.evicted) != isinstance(wrapper, SoftPrune) for layer in cache.packed_layers)
    assert cache.get_seq_length() == 99


@pytest.mark.parametrize(
    "policy",
    [
        SnapKV(INNER, select=(16, 32)),
        SnapKV(FullPrecision(window=8), select=(16, 32)),
        AdaKV(FullPrecision(window=8), select=(16, 24)),
    ],
)
@torch.no_grad()
def test_several_tokens_at_once_after_layers_kept_different_numbers(policy):
    """Reading several tokens at once gives the same as one at a time, while nothing more is coded."""
    model, ids = llama(), tokens(length=84)
    attention.install(model)
    found = []
    for pieces in ((80, 4), (80, 1, 1, 1, 1)):
        cache = QuantizedKVCache(model.config, policy)
        found.append(torch.cat([model(x, **{CACHE: cache}).logits for x in ids.split(pieces, 1)], 1))
        assert len({layer.stored for layer in cache.packed_layers}) == 2
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-3)


def test_snapkv_needs_to_see_queries():
    model = llama()
    with pytest.raises(PolicyError, match=r"attention\.install"):
        model(tokens(length=80), **{CACHE: QuantizedKVCache(model.config, SnapKV(INNER, select=16))})


ADAPTIVE = AdaKV(INNER, select=16, observed=4, pool=1)


def prompt_of_two_heads(batch=1):
    """Head 0 looks at all 32 tokens of `wanted`, head 1 at 8 of them; keys, values and queries of a prompt of 100."""
    random = torch.Generator().manual_seed(5)
    keys, values = torch.randn(2, batch, 2, 100, 8, generator=random)
    wanted = torch.arange(10, 74, 2)
    keys[:, 0, wanted] += 5
    keys[:, 1, wanted[:8]] += 5
    return keys, values, wanted, torch.ones(batch, 4, 100, 8)


def test_adakv_gives_a_head_what_it_needs():
    layer = PackedLayer(ADAPTIVE, 0, native=lambda: True)
    keys, values, wanted, query = prompt_of_two_heads()
    view = take_view(*layer.update(keys, values))
    view.observer(query)
    assert [store.blocks for store in layer.selected.stores] == [3, 1] and layer.blocks == 0
    assert layer.get_seq_length() == 100 and layer.stored == 2 + 24 + 8 and layer.evicted == 66
    assert layer.full_precision_nbytes == (2 * (2 + 8) + 24 + 8) * 2 * 8 * 4
    kept = layer.dense()[0]
    torch.testing.assert_close(kept[:, 1, 2:10], keys[:, 1, wanted[:8]], rtol=0, atol=0.05)
    assert all(any(torch.allclose(one, other, atol=0.05) for other in keys[0, 0, wanted]) for one in kept[0, 0, 2:26])
    assert torch.equal(layer.values[:, :, 26:], values[:, :, 92:])
    assert layer._view().absent.sum(1).tolist() == [0, 16]


def grown(layer, count):
    random = torch.Generator().manual_seed(6)
    return take_view(*layer.update(*torch.randn(2, layer.residual[0].shape[0], 2, count, 8, generator=random)))


@pytest.mark.parametrize("inner", [INNER, FullPrecision(sinks=2, window=8), Rotated(3, sinks=2, window=8)])
@pytest.mark.parametrize("batch", [1, 2])
def test_attention_reads_heads_of_different_numbers_of_tokens(inner, batch, monkeypatch):
    monkeypatch.setattr(tiles, "_TILE", 16)
    layer = PackedLayer(AdaKV(inner, select=16, observed=4, pool=1, floor=0), 0, native=lambda: True)
    keys, values, _, query = prompt_of_two_heads(batch)
    view = take_view(*layer.update(keys, values))
    view.observer(query)
    counts = {store.blocks for store in layer.selected.stores}
    assert len(counts) == 2 and layer.selected.total >= 32
    layer.batch_repeat_interleave(2)
    for count in (1, 40, 1, 3):
        view = grown(layer, count)
        asked = torch.randn(2 * batch, 4, count, 8)
        bias = additive_mask(None, count, view.length, True, asked)
        expected = tiles.reference_attend(asked, view, bias, 0.3)
        torch.testing.assert_close(tiles.attend(asked, view, bias, 0.3), expected, rtol=2e-5, atol=2e-5)
        torch.testing.assert_close(attention.attend(asked, view, bias, 0.3), expected, rtol=2e-5, atol=2e-5)
        assert cpu.fits(asked, view) == (count == 1 and inner.block > 0)
    assert layer.get_seq_length() == 145 and layer.get_mask_sizes(1) == (layer.stored + 1, layer.evicted)
    before = layer.residual[0].clone()
    layer.crop(-5)
    layer.update(before[:, :, -5:], before[:, :, -5:])
    assert torch.equal(layer.dense()[0][:, :, -5:], before[:, :, -5:])
    with pytest.raises(RuntimeError, match="a prompt from which heads chose tokens cannot be cropped"):
        layer.crop(-100)


def test_heads_share_a_budget_to_the_block():
    """50 tokens of the first head come before all others; the second's before the third's."""
    weights = torch.tensor([0, 1e-3, 1e-4])[None, :, None].repeat(1, 1, 100)
    weights[0, 0, :50] = 1
    for given, wanted in (
        ((20, 8, 0.0), [48, 16, 0]),
        ((20, 1, 0.2), [50, 6, 4]),
        ((20, 1, 1.0), [20, 20, 20]),
        ((99, 8, 0.2), [96, 96, 96]),
        ((1, 8, 0.5), [8, 0, 0]),
    ):
        assert evict._counts(weights, *given) == wanted


def test_adakv_goes_through_a_file(tmp_path):
    model, ids = llama(), tokens(length=120)
    attention.install(model)
    for inner in (INNER, FullPrecision(sinks=2, window=8)):
        cache = QuantizedKVCache(model.config, AdaKV(inner, select=16))
        model(ids, **{CACHE: cache})
        cache.save(tmp_path / "a.kv", model, ids[0])
        again = QuantizedKVCache.load(tmp_path / "a.kv", model.config, model=model, prompt=ids[0])
        assert again.policy == cache.policy and again.get_seq_length() == 120 and again.nbytes <= cache.nbytes
        step = torch.tensor([[5]])
        assert torch.equal(model(step, **{CACHE: cache}).logits, model(step, **{CACHE: again}).logits)


@dataclass(frozen=True)
class Tellable(FullPrecision):
    """Keeps every other token of a prompt, and 20 at most."""

    window: int = 8
    told: list = field(default_factory=list)

    def wants_queries(self, layer, tokens):
        return tokens > 20

    def on_prompt(self, held, query):
        self.told.append((held.index, tuple(query.shape), held.choosable))
        held.keep(torch.arange(0, held.choosable, 2).expand(1, 2, -1))

    def on_step(self, held):
        held.keep_latest(20)


def test_a_layer_tells_its_policy_and_knows_no_other():
    policy = Tellable()
    layer = PackedLayer(policy, 3, native=lambda: True)
    keys, values = torch.randn(2, 1, 2, 60, 8)
    take_view(*layer.update(keys, values)).observer(torch.ones(1, 4, 60, 8))
    assert policy.told == [(3, (1, 4, 60, 8), 52)] and layer.get_seq_length() == 60
    kept = [*range(12, 52, 2), *range(52, 60)]
    assert torch.equal(layer.keys, keys[:, :, kept]) and layer.evicted == 32


@pytest.mark.parametrize("outer", [SinksAndWindow, SnapKV, AdaKV, SoftPrune])
def test_one_eviction_goes_around_a_policy(outer):
    with pytest.raises(PolicyError, match=f"got SinksAndWindow and {outer.__name__}: leave one out"):
        outer(SinksAndWindow(INNER))
    with pytest.raises(PolicyError, match="an archive holds all tokens: leave out the eviction"):
        outer(Archive((), 1.0, 1.0))
