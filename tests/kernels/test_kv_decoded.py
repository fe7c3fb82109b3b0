"""Attention over decoded layers by torch's: against the plain definition, within its room, and chosen where it is
fastest."""

import json
from dataclasses import replace

import pytest
import torch

from squeeze.kernels import choices, kv_attention
from squeeze.kernels.choices import Choices
from squeeze.kernels.kv_attention import decoded, reference, tiles
from squeeze.kv import KIVI, FullPrecision, QuantizedKVCache
from squeeze.kv.blockfloat import BlockFloatCoder
from squeeze.kv.contract import CACHE
from squeeze.kv.evict import AdaKV
from squeeze.kv.grouped import GroupedCoder
from squeeze.kv.layer import PackedLayer
from squeeze.kv.mask import additive_mask
from squeeze.kv.memory import PeakMemory
from squeeze.kv.offer import taken
from tests.makers.kv_layers import CLOSE, CODERS, Coded, layer_of, query_of
from tests.makers.kv_models import MODELS, tokens

ROOM = 1 << 30
KEYS, VALUES = GroupedCoder(4, "tokens"), GroupedCoder(4, "channels")


@pytest.fixture
def parts(monkeypatch):
    """Rows and heads of what torch is given at a time."""
    given, attend = [], decoded.scaled_dot_product_attention

    def noted(query, keys, values, mask, scale):
        given.append(tuple(keys.shape[:2]))
        return attend(query, keys, values, mask, scale=scale)

    monkeypatch.setattr(decoded, "scaled_dot_product_attention", noted)
    return given


@pytest.mark.parametrize("coder", list(CODERS))
def test_every_coder(coder):
    view = layer_of(Coded(CODERS[coder], CODERS[coder]))._view()
    expected = reference.attend(query_of(), view, None, 0.3)
    torch.testing.assert_close(decoded.attend(query_of(), view, None, 0.3, ROOM), expected, **CLOSE)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_queries_of_16_bits(dtype):
    view = layer_of(Coded(KEYS, VALUES))._view()
    query = query_of().to(dtype)
    expected = reference.attend(query.float(), view, None, 0.3)
    close = 3e-3 if dtype == torch.float16 else 3e-2
    found = decoded.attend(query, view, None, 0.3, ROOM)
    assert found.dtype == dtype
    torch.testing.assert_close(found.float(), expected, rtol=close, atol=close)


# a head of 60 tokens takes 7,680 bytes, a block of it 8,192 while it is decoded, both no more than a half
PARTS = {ROOM: [(2, 3)], 6 << 14: [(2, 3)], 5 << 14: [(1, 3)] * 2, 2 << 14: [(1, 2), (1, 1)] * 2, 1 << 14: [(1, 1)] * 6}


@pytest.mark.parametrize("nbytes", list(PARTS))
@pytest.mark.parametrize("heads", [None, (0, 2)], ids=["alike", "coded differently"])
def test_rows_and_heads_that_have_room(nbytes, heads, parts):
    view, query = layer_of(Coded(KEYS, VALUES, heads))._view(), query_of()
    assert decoded.fits(query, view, None, nbytes)
    expected = reference.attend(query, view, None, 0.3)
    torch.testing.assert_close(decoded.attend(query, view, None, 0.3, nbytes), expected, **CLOSE)
    assert parts == PARTS[nbytes]


def test_where_one_head_has_no_room():
    view = layer_of(Coded(KEYS, VALUES))._view()
    assert not decoded.fits(query_of(), view, None, (1 << 14) - 1)
    long = replace(view, residual=tuple(x.expand(2, 3, 1000, 16) for x in (view.residual[0][:, :, :1],) * 2))
    assert not decoded.fits(query_of(), long, None, 1 << 14)
    bias = torch.zeros(2, 1, 7, view.length)
    assert decoded.fits(query_of(7), view, None, 1 << 14) and not decoded.fits(query_of(7), view, bias, 1 << 14)


@pytest.mark.parametrize("nbytes", [ROOM, 1 << 16, 3 << 14])
@pytest.mark.parametrize("sliding_window", [None, 50])
def test_several_queries(nbytes, sliding_window, parts):
    """The last of them sees all tokens, the first all but six."""
    layer = layer_of(Coded(KEYS, VALUES), sliding_window=sliding_window)
    view = layer._view(0 if sliding_window is None else layer.get_seq_length() - sliding_window)
    query = query_of(7)
    bias = additive_mask(None, 7, view.length, True, query)
    expected = reference.attend(query, view, bias, 0.3)
    assert not torch.allclose(expected, reference.attend(query, view, None, 0.3))
    torch.testing.assert_close(decoded.attend(query, view, bias, 0.3, nbytes), expected, **CLOSE)
    assert (len(parts) == 1) == (nbytes == ROOM)


@pytest.mark.parametrize("shape", [(2, 1, 1, 60), (1, 6, 3, 60), (2, 6, 1, 60), (2, 1, 3, 60)])
@pytest.mark.parametrize("nbytes", [ROOM, 1 << 16])
def test_masks_of_rows_and_of_heads(shape, nbytes):
    view, query = layer_of(Coded(KEYS, VALUES, (1,)))._view(), query_of(3)
    seen = torch.rand(shape, generator=torch.Generator().manual_seed(2)) < 0.7
    bias = additive_mask(seen, 3, view.length, True, query)
    expected = reference.attend(query, view, bias, 0.3)
    torch.testing.assert_close(decoded.attend(query, view, bias, 0.3, nbytes), expected, **CLOSE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_what_sees_nothing_is_finite(dtype):
    """As padding is, on the left of a prompt; the other row is as it would be."""
    view, query = layer_of(Coded(KEYS, VALUES))._view(), query_of(2).to(dtype)
    seen = torch.ones(2, 1, 2, view.length, dtype=torch.bool)
    seen[0, 0, 0] = False
    found = decoded.attend(query, view, additive_mask(seen, 2, view.length, True, query), 0.3, ROOM)
    assert found.isfinite().all()
    alone = decoded.attend(query, view, None, 0.3, ROOM)
    torch.testing.assert_close(found[1], alone[1])


@pytest.mark.parametrize("inner", [KIVI(4, group=8, sinks=2, window=8), FullPrecision(sinks=2, window=8)])
def test_heads_with_tokens_of_their_own(inner):
    layer = PackedLayer(AdaKV(inner, select=16, observed=4, pool=1, floor=0), 0, native=lambda: True)
    random = torch.Generator().manual_seed(5)
    keys, values = torch.randn(2, 2, 2, 100, 16, generator=random)
    keys[:, 0, 10:74:2] += 5
    view = taken(*layer.update(keys, values))
    view.observer(torch.ones(2, 4, 100, 16))
    for count in (1, 40, 1, 3):
        view = taken(*layer.update(*torch.randn(2, 2, 2, count, 16, generator=random)))
        query = query_of(count, heads=4)
        bias = additive_mask(None, count, view.length, True, query)
        expected = reference.attend(query, view, bias, 0.3)
        for nbytes in (ROOM, 1 << 20):
            torch.testing.assert_close(decoded.attend(query, view, bias, 0.3, nbytes), expected, **CLOSE)
    assert not decoded.fits(query, view, bias, 1 << 14)


MEASURED = {
    "grouped": (KEYS, VALUES),
    "rotated": (GroupedCoder(3, "channels", rotate=True, points="normal"),) * 2,
    "in an order": (BlockFloatCoder(4, order=tuple(range(15, -1, -1))),) * 2,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("coders", list(MEASURED))
@pytest.mark.parametrize("queries", [1, 5])
def test_scratch_stays_within_its_room(dtype, coders, queries):
    """Of 40 blocks, so that several are decoded at a time."""
    view, query = layer_of(Coded(*MEASURED[coders]), length=648)._view(), query_of(queries).to(dtype)
    bias = additive_mask(None, queries, view.length, True, query)
    decoded.attend(query, view, bias, 0.3, ROOM)  # constants are made once
    for nbytes in (1 << 19, 1 << 20, 1 << 21):
        assert decoded.fits(query, view, bias, nbytes)
        with PeakMemory() as memory:
            decoded.attend(query, view, bias, 0.3, nbytes)
        assert memory.peak <= nbytes + 3 * query.nbytes  # what is returned; and of a part, queries and outputs


@pytest.mark.parametrize("name", list(MODELS))
def test_models_give_the_same(name, monkeypatch):
    """As with tiles: padding, sliding windows, several tokens at once."""
    ids, mask = tokens(2, 60), torch.ones(2, 60, dtype=torch.long)
    mask[1, :7] = 0
    found = []
    for attend in (tiles.attend, lambda *given: decoded.attend(*given[:4], 1 << 16)):
        monkeypatch.setattr(kv_attention, "attend", attend)
        model = MODELS[name]()
        kv_attention.install(model)
        cache = QuantizedKVCache(model.config, KIVI(bits=4, group=8, sinks=2, window=8))
        with torch.no_grad():
            pieces = zip(ids.split([50, 4, 1, 1, 4], 1), (50, 54, 55, 56, 60), strict=True)
            steps = [model(x, attention_mask=mask[:, :end], **{CACHE: cache}).logits for x, end in pieces]
        found.append(torch.cat(steps, 1)[mask.bool()])
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-3)  # logits of weights times 4


class Clock:
    """Says how long each way takes, and counts what it is asked."""

    def __init__(self, **seconds):
        self.seconds, self.asked = seconds, []

    def __call__(self, call):
        (name,) = call.args
        self.asked.append(name)
        if isinstance(self.seconds[name], Exception):
            raise self.seconds[name]
        return self.seconds[name]


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    """One on which ways take so many seconds; returns a clock, and what is kept."""
    pytest.importorskip("triton", reason="triton is not installed")
    path = tmp_path / "it.json"

    def made(nbytes=ROOM, **seconds):
        clock = Clock(**seconds)
        found = Choices(path, "A GPU", "3", clock)
        monkeypatch.setattr(choices, "of_device", lambda device: found)
        monkeypatch.setattr(decoded, "room", lambda device: nbytes)
        return clock, lambda: json.loads(path.read_text())["chosen"] if path.exists() else {}

    return made


def wide():
    """A layer that the kernel takes."""
    policy = Coded(KEYS, VALUES)
    policy.block = 32
    return layer_of(policy, length=107, heads=2, size=32, value_size=32, batch=1)._view()


WORDS = (
    "attention over 128 tokens in blocks of 32, keys of 4 bits along tokens, values of 4 bits along channels, "
    "6 heads on 2 of 32 channels, 1 query in a row, float32, 1 row"
)


@pytest.mark.parametrize("fastest", ["kernel", "tiles", "torch"])
def test_the_fastest_way_is_measured_once_and_kept(fastest, gpu, parts):
    seconds = {"kernel": 3.0, "tiles": 3.0, "torch": 3.0} | {fastest: 1.0}
    clock, kept = gpu(**seconds)
    view, query = wide(), query_of(batch=1, size=32)
    expected = reference.attend(query, view, None, 0.3)
    for _ in range(2):
        torch.testing.assert_close(kv_attention._fastest(query, view, None, 0.3), expected, **CLOSE)
    assert clock.asked == ["kernel", "tiles", "torch"] and kept() == {WORDS: fastest}
    assert len(parts) == 1 + 2 * (fastest == "torch")  # one to see whether it is right
    clock, _ = gpu()
    kv_attention._fastest(query, view, None, 0.3)  # in another process
    assert clock.asked == []


def test_what_no_kernel_takes_is_measured_beside_tiles(gpu):
    clock, kept = gpu(tiles=2.0, torch=1.0)
    view, query = wide(), query_of(3, batch=1, size=32)
    bias = additive_mask(None, 3, view.length, True, query)
    torch.testing.assert_close(
        kv_attention._fastest(query, view, bias, 0.3), reference.attend(query, view, bias, 0.3), **CLOSE
    )
    assert clock.asked == ["tiles", "torch"]
    assert kept() == {WORDS.replace("1 query in a row", "4 queries in a row, masked"): "torch"}


def test_shapes_in_words():
    def words(view, query, bias=None, ways=("torch",)):
        return kv_attention._shape_of(query, view, bias, list(ways))

    view = layer_of(Coded(GroupedCoder(2, "channels", 8), CODERS["3 bits, channels, normal, rotated"], (0, 2)))._view()
    assert words(view, query_of()) == (
        "attention over 64 tokens in blocks of 16, keys of 2 bits along channels in groups of 8, values of 3 bits "
        "along channels rotated on points, keys of 8 bits along channels, values of 8 bits along tokens, "
        "6 heads on 3 of 16 channels, 1 query in a row"
    )
    view = layer_of(Coded(BlockFloatCoder(4), BlockFloatCoder(4)), value_size=32)._view()
    assert words(view, query_of(9), torch.zeros(1), ()) == (
        "attention over 64 tokens in blocks of 16, keys of BlockFloatCoder, values of BlockFloatCoder, "
        "6 heads on 3 of 16 channels and 32, 16 queries in a row, masked, no room to decode"
    )


def test_a_layer_that_has_no_room_is_not_decoded(gpu, parts):
    """Whatever was chosen for the shape, which goes on to hold where there is room."""
    view, query = wide(), query_of(batch=1, size=32)
    _, kept = gpu(kernel=2.0, tiles=3.0, torch=1.0)
    kv_attention._fastest(query, view, None, 0.3)
    parts.clear()
    clock, _ = gpu(nbytes=1 << 10, kernel=2.0, tiles=3.0)
    kv_attention._fastest(query, view, None, 0.3)
    less = WORDS.replace(" in a row", " in a row, no room to decode")
    assert clock.asked == ["kernel", "tiles"] and parts == [] and kept() == {WORDS: "torch", less: "kernel"}
    clock, _ = gpu(nbytes=1 << 10)
    bias = torch.zeros(1, 1, 1, view.length)
    found = kv_attention._fastest(query, view, bias, 0.3)  # by tiles, which is all that is left
    torch.testing.assert_close(found, reference.attend(query, view, None, 0.3), **CLOSE)
    assert clock.asked == []


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError(), RuntimeError("operation not permitted when stream is capturing")]
)
def test_where_nothing_is_found_out_nothing_is_kept(error, gpu, parts):
    clock, kept = gpu(kernel=error, tiles=error, torch=error)
    view, query = wide(), query_of(batch=1, size=32)
    expected = reference.attend(query, view, None, 0.3)
    for _ in range(2):
        torch.testing.assert_close(kv_attention._fastest(query, view, None, 0.3), expected, **CLOSE)
    asked = ["kernel"] if isinstance(error, torch.OutOfMemoryError) else ["kernel", "tiles", "torch"]
    assert clock.asked == asked and kept() == {} and parts == []


def test_memory_that_ends_for_torch_is_not_kept(gpu, parts):
    clock, kept = gpu(kernel=1.0, tiles=2.0, torch=torch.OutOfMemoryError())
    for _ in range(2):
        kv_attention._fastest(query_of(batch=1, size=32), wide(), None, 0.3)
    assert clock.asked == ["kernel", "tiles", "torch"] and kept() == {} and parts == []


def test_a_kernel_that_the_gpu_cannot_launch_is_left_out(gpu):
    _, kept = gpu(kernel=RuntimeError("out of resource: shared memory"), tiles=2.0, torch=1.0)
    kv_attention._fastest(query_of(batch=1, size=32), wide(), None, 0.3)
    assert kept() == {WORDS: "torch"}


def test_what_torch_has_no_fused_kernel_for_is_left_out(gpu):
    """On the CPU, values of another size than keys."""
    _, kept = gpu(tiles=2.0, torch=1.0)
    view = layer_of(Coded(GroupedCoder(3, "tokens"), GroupedCoder(3, "channels")), value_size=32)._view()
    expected = reference.attend(query_of(), view, None, 0.3)
    torch.testing.assert_close(kv_attention._fastest(query_of(), view, None, 0.3), expected, **CLOSE)
    assert list(kept().values()) == ["tiles"]


def test_where_memory_ends_later_the_kernel_goes_on(gpu, monkeypatch):
    _, kept = gpu(kernel=2.0, tiles=3.0, torch=1.0)
    view, query = wide(), query_of(batch=1, size=32)
    expected = kv_attention._fastest(query, view, None, 0.3)

    def ends(*given):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(decoded, "_attend", ends)
    torch.testing.assert_close(kv_attention._fastest(query, view, None, 0.3), expected, **CLOSE)
    assert kept() == {WORDS: "torch"}


def test_room_is_a_part_of_the_memory(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: type("", (), {"total_memory": 80 << 30})())
    assert decoded.room(torch.device("cuda:1")) == (80 << 30) // 64
