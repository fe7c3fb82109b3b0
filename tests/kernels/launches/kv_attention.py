"""Typical launches of attention over a coded cache: KIVI's blocks of 64 tokens, eight KV heads of 128 channels; rotated
codes; heads of 256."""

from collections.abc import Iterator
from functools import partial

from squeeze.kv.attention import kernel
from squeeze.kv.base import Policy
from squeeze.kv.kivi import KIVI
from squeeze.kv.rotated import Rotated
from squeeze.kv.store import Fields
from squeeze.kv.view import LayerView
from tests.kernels.launches.launch import Launch, meta

__all__ = ["launches"]

_BATCH, _HEADS, _CHANNELS, _TOKENS = 8, 8, 128, 1 << 15


def _view(policy: Policy, channels: int = _CHANNELS) -> LayerView:
    (group,) = policy.head_groups(0, _HEADS)
    blocks = meta(_BATCH, _HEADS, _TOKENS // policy.block, policy.block, channels)
    fields: Fields = {}
    for kind, coder in (("keys", group.keys), ("values", group.values)):
        fields |= {f"{kind}.{name}": tensor for name, tensor in coder.encode(blocks, 0).items()}
    sinks, residual = (
        (meta(_BATCH, _HEADS, tokens, channels), meta(_BATCH, _HEADS, tokens, channels))
        for tokens in (policy.sinks, policy.window)
    )
    return LayerView(sinks, [(group, fields)], residual, blocks.shape[2], policy.block, 0, 0)


def launches() -> Iterator[Launch]:
    about = f"{_TOKENS} tokens, {_BATCH} sequences, {4 * _HEADS} heads on {_HEADS}"
    yield _coded(f"heads of {2 * _CHANNELS}, 4 bits, {about}", _view(KIVI(bits=4), 2 * _CHANNELS))
    yield _coded(f"rotated, 4 bits, {about}", _view(Rotated(bits=4)))
    for bits in (8, 4, 2):
        view = _view(KIVI(bits=bits))
        yield _coded(f"{bits} bits, {about}", view)
    query = meta(_BATCH, 4 * _HEADS, 1, _CHANNELS)
    splits = kernel.room(query, view)
    yield Launch(
        name=f"kv_attention joined, {about}",
        run=partial(kernel.joined, query, view, 0.1, splits),
    )


def _coded(name: str, view: LayerView) -> Launch:
    query = meta(_BATCH, 4 * _HEADS, 1, view.residual[0].shape[3])
    return Launch(
        name=f"kv_attention {name}",
        run=partial(kernel.coded, query, view, 0.1),
    )
