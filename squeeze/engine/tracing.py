"""Traces of a model's own forward: the arguments of its blocks, which run, or return zeros."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import ref

import torch
from torch import nn

from squeeze.engine.trees import OUT, Part, at, copied, leaves, new_entries, with_parts
from squeeze.engine.walking import BlockTrace, Unwalkable

__all__ = ["handing_on", "traced"]

Forward = Callable[..., Any]
_PLAIN = (torch.Tensor, torch.dtype, torch.device, str, int, float, type(None))


class _Stop(Exception):
    """The end of the model's forward, once everything needed has been seen."""


def traced(
    blocks: list[nn.Module],
    run: Callable[[], object],
    work: "Forward | list[BlockTrace]",
    last: int,
    *,
    ends: bool = True,
) -> list[BlockTrace]:
    """Trace the blocks up to number `last` in a run of the model.

    Args:
        blocks: the blocks.
        run: runs the model.
        work: work(number, args, kwargs) returns a block's result; or the traces of another run, of whose results the
            blocks then return zeros.
        last: number of the last block.
        ends: whether the run ends with the last block, and a block that runs again later is not seen.

    Raises:
        Unwalkable: the blocks do not run once each, in their order.
    """
    traces: list[BlockTrace] = []
    origins: dict[int, tuple[Any, int, tuple[Any, ...]]] = {}

    def forward(number: int, *args: Any, **kwargs: Any) -> Any:
        if number != len(traces):
            raise Unwalkable("it does not run its blocks once each, in their order")
        arguments = {"args": args, "kwargs": kwargs}
        trace = _trace_of(arguments, origins)
        traces.append(trace)
        if callable(work):
            before = copied(arguments)
            out = work(number, args, kwargs)
            mutated = dict(new_entries(before, arguments))
            trace.returned = with_parts(out)
            trace.mutated = {path: with_parts(value) for path, value in mutated.items()}
            for path, value in [
                *leaves(out, (OUT,)),
                *(leaf for key, entry in mutated.items() for leaf in leaves(entry, key)),
            ]:
                if isinstance(value, torch.Tensor):
                    origins[id(value)] = ref(value), number, path
        elif number < last:
            out = _zeros(work[number].returned, args, kwargs)
            for path, entry in work[number].mutated.items():
                _put(at(arguments, path[:-1]), path[-1], _zeros(entry, args, kwargs))
        if number == last and ends:
            raise _Stop
        return out

    with handing_on(blocks, forward):
        _run_to_end(run, lambda: len(traces) > last)
    if len(traces) <= last:
        raise Unwalkable("it does not run all of its blocks")
    return traces


def _run_to_end(run: Callable[[], object], complete: Callable[[], bool]) -> None:
    """Run the model, which may fail once all blocks have run: what follows may need what they put elsewhere."""
    try:
        run()
    except _Stop:
        return
    except Unwalkable:
        raise
    except Exception:
        if not complete():
            raise


def _trace_of(arguments: dict[str, Any], origins: dict[int, tuple[Any, int, tuple[Any, ...]]]) -> BlockTrace:
    """Return the trace of a block's arguments; tensors that an earlier block made are not kept."""
    trace = BlockTrace({}, with_parts(arguments))
    for path, value in leaves(arguments):
        if not isinstance(value, _PLAIN) and not callable(value):
            raise Unwalkable(f"its blocks are given a {type(value).__name__}, which may keep what they compute")
        if isinstance(value, torch.Tensor):
            alive, number, place = origins.get(id(value), (lambda: None, 0, ()))
            if alive() is value:
                trace.produced[path] = number, place
            else:
                trace.arguments[path] = value
    return trace


def _put(container: Any, key: Any, entry: Any) -> None:
    if isinstance(container, list) and key == len(container):
        container.append(entry)
    else:
        container[key] = entry


def _zeros(template: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    device = next((x.device for _, x in leaves((args, kwargs)) if isinstance(x, torch.Tensor)), None)

    def change(path: Any, leaf: Any) -> Any:
        return torch.zeros(leaf.shape, dtype=leaf.dtype, device=device) if isinstance(leaf, Part) else leaf

    return copied(template, change)


@contextmanager
def handing_on(blocks: list[nn.Module], forward: Forward) -> Iterator[None]:
    """Replace the blocks' forward by forward(number, ...) in the `with` block."""
    for number, block in enumerate(blocks):
        block.forward = _bound(forward, number)
    try:
        yield
    finally:
        for block in blocks:
            block.__dict__.pop("forward", None)


def _bound(forward: Forward, number: int) -> Forward:
    def bound(*args: Any, **kwargs: Any) -> Any:
        return forward(number, *args, **kwargs)

    return bound
