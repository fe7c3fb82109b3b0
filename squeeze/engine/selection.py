"""Select the matrices of a network that are compressed, and say why the others stay dense."""

from collections.abc import Collection, Iterable

from torch import nn

from squeeze.checkpoint.architectures import SHARED_EXPERTS
from squeeze.engine.network import Network, is_linear, weight_of
from squeeze.errors import SqueezeError, printable

__all__ = ["by_both_names", "check_ignored", "excluded_outside", "ignored", "plan"]

_LEAST_ROWS = 32  # matrices with fewer rows, such as gates, stay dense


def plan(network: Network, block: str, ignore: Iterable[str] = ()) -> tuple[list[str], dict[str, str]]:
    """Return the linear modules of a block to be compressed, and reasons for the others."""
    selected, reasons = [], {}
    for name, module in network.module(block).named_modules():
        full = f"{block}.{name}"
        if not network.is_inside(full):
            continue
        if is_linear(module):
            reason = _reason((full, network.stored_name(full)), weight_of(module).shape[0], ignore)
            if reason := reason or ("has its weight in common with another" if full in network.shared else None):
                reasons[network.stored_name(full)] = reason
            else:
                selected.append(name)
        elif isinstance(module, nn.Linear):
            reasons[network.stored_name(full)] = f"multiplies in the way of its class {type(module).__name__}"
        elif fused := [key for key, value in module.named_parameters(recurse=False) if value.ndim > 2]:
            reasons |= dict.fromkeys((f"{full}.{key}" for key in fused), "a tensor of three dimensions")
    return selected, reasons


def ignored(network: Network, ignore: Iterable[str] = (), outer: Collection[str] = ()) -> list[str]:
    """Return every matrix that stays dense, in the blocks and outside, by its names in checkpoint and network.

    `outer` are matrices outside the blocks that do not, by the network's name.
    """
    excluded = dict(excluded_outside(network, outer))
    for block in network.blocks:
        excluded |= plan(network, block, ignore)[1]
    return by_both_names(network, excluded)


def check_ignored(network: Network, ignore: Iterable[str]) -> None:
    """Raise SqueezeError for a part of `ignore` that is in no name of a module or tensor."""
    names = [*(name for name, _ in network.model.named_modules()), *network.sources.values()]
    for part in ignore:
        if not any(part in name for name in names):
            raise SqueezeError(
                f"{network.checkpoint.folder}: no module has {printable(repr(part))} in its name, as in `ignore`"
            )


def _reason(names: tuple[str, str], rows: int, ignore: Iterable[str]) -> str | None:
    """Return why a linear module stays dense; None if it does not. `names` are the network's and the checkpoint's."""
    asked = [part for part in ignore if any(part in name for name in names)]
    if asked:
        return "sees every token" if asked[0] in SHARED_EXPERTS else "as asked for"
    if names[0].rpartition(".")[2] in ("router", "gate", "shared_expert_gate"):
        return "decides which experts run"
    return f"has only {rows} rows" if rows < _LEAST_ROWS else None


def excluded_outside(network: Network, outer: Collection[str] = ()) -> dict[str, str]:
    """Return matrices outside the blocks, or outside the network, with the reason why they stay dense.

    `outer` are those that do not, by the network's name.
    """
    lost = tuple(f"{block}." for block in network.unreached)
    reasons = {
        name: "the calibration does not reach it" if name.startswith(lost) else "outside the blocks"
        for name, module in network.model.named_modules()
        if (is_linear(module) or isinstance(module, nn.Linear))
        and name not in outer
        and (name.startswith(lost) or not network.is_inside(name))
    }
    files, parameters = network.checkpoint.files, dict(network.model.named_parameters(remove_duplicate=False))
    known = {source for name, source in network.sources.items() if name in parameters}
    for name in network.unclaimed:
        module, _, leaf = name.rpartition(".")
        if name in files and name not in known and leaf == "weight" and len(files[name].by_name[name].shape) > 1:
            reasons.setdefault(module, "is not part of the network that transformers runs")
    return reasons


def by_both_names(network: Network, modules: Iterable[str]) -> list[str]:
    """Return modules by their names in the network and in the checkpoint."""
    called = {network.stored_name(name): name for name, _ in network.model.named_modules()}
    names = set(modules)
    return sorted({*names, *map(network.stored_name, names), *(called[name] for name in names if name in called)})
