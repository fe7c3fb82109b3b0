"""Typical launches of attention over a coded cache: KIVI's blocks of 64 tokens, eight KV heads of 128 channels."""

from collections.abc import Iterator, Mapping
from functools import partial

import torch

from squeeze.kernels.kv_attention import expand, kernel, reference
from squeeze.kernels.launch import Launch, meta, operations
from squeeze.kv.kivi import KIVI
from squeeze.kv.store import Fields
from squeeze.kv.view import LayerView, fields_of

__all__ = ["launches"]

_BATCH, _HEADS, _CHANNELS, _TOKENS = 8, 8, 128, 1 << 15


def _view(policy: KIVI) -> LayerView:
    (group,) = policy.head_groups(0, _HEADS)
    blocks = meta(_BATCH, _HEADS, _TOKENS // policy.block, policy.block, _CHANNELS)
    fields: Fields = {}
    for kind, coder in (("keys", group.keys), ("values", group.values)):
        fields |= {f"{kind}.{name}": tensor for name, tensor in coder.encode(blocks, 0).items()}
    sinks, residual = (
        (meta(_BATCH, _HEADS, tokens, _CHANNELS), meta(_BATCH, _HEADS, tokens, _CHANNELS))
        for tokens in (policy.sinks, policy.window)
    )
    return LayerView(sinks, [(group, fields)], residual, blocks.shape[2], policy.block, 0, 0)


def launches() -> Iterator[Launch]:
    for bits in (8, 4, 2):
        view, query = _view(KIVI(bits=bits)), meta(_BATCH, 4 * _HEADS, 1, _CHANNELS)
        about = f"{_TOKENS} tokens, {_BATCH} sequences, {4 * _HEADS} heads on {_HEADS}"
        yield Launch(
            name=f"kv_attention {bits} bits, {about}",
            run=partial(kernel.coded, query, view, 0.1),
            operands=(query, *view.stores[0][1].values()),
            result=torch.empty_like(query),
            operations=operations(partial(reference.attend, query, view, None, 0.1)),
            trips=lambda arguments: (arguments["per_split"],),
        )
        yield from _expanded(view, bits)
    splits = kernel.room(query, view)
    yield Launch(
        name=f"kv_attention joined, {about}",
        run=partial(kernel.joined, query, view, 0.1, splits),
        operands=(query, *view.sinks, *view.residual, *splits),
        result=torch.empty_like(query),
        operations=0,
        trips=_of_join,
    )


def _expanded(view: LayerView, bits: int) -> Iterator[Launch]:
    """Of a whole layer, which is more than has room at once."""
    group, fields = view.stores[0]
    for kind, coder in (("keys", group.keys), ("values", group.values)):
        mine, out = fields_of(fields, kind), meta(_BATCH, _HEADS, _TOKENS, _CHANNELS)
        yield Launch(
            name=f"kv_attention {kind} of {bits} bits expanded, {_TOKENS} tokens, {_BATCH} sequences, {_HEADS} heads",
            run=partial(expand.write, coder, mine, out),
            operands=tuple(mine.values()),
            result=out,
            operations=0,
            trips=lambda arguments: (),
            exact=True,
        )


def _of_join(arguments: Mapping[str, int]) -> tuple[int, ...]:
    exact = arguments["sinks"] + arguments["recent"]
    return -(-exact // arguments["TOKENS"]), -(-arguments["splits"] // arguments["TOGETHER"])
