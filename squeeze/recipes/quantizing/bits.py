"""Mixed precision: bits of each matrix by name, or chosen so that the checkpoint has a given size."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import torch

from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.engine.expert_names import is_expert
from squeeze.engine.inputs import Inputs, only_tokens
from squeeze.engine.network import Network
from squeeze.engine.selection import plan
from squeeze.errors import SqueezeError, printable
from squeeze.quant.allocation import allocate
from squeeze.quant.bits import LEFT, Bits
from squeeze.quant.method import GridMethod
from squeeze.recipes.options import Common, Quantizing
from squeeze.recipes.quantizing.fitting import Fitted, fitting
from squeeze.recipes.quantizing.outer import Outer
from squeeze.recipes.quantizing.writing import DENSE, make_writer
from squeeze.recipes.run import Run

__all__ = ["FISHER_TOKENS", "Mix", "by_budget", "by_name"]

FISHER_TOKENS = 4096  # of the calibration that the choice of bits looks at
_OWN = "squeeze"  # the format in which every matrix may have bits of its own
_NUMBER = re.compile(r"(\.experts\.)\d+\..*")


@dataclass(frozen=True)
class Mix:
    """Methods that differ from the common one.

    `methods` are by the checkpoint's module name. `patterns` are methods of modules that match exactly one regular
    expression. `ignore` are modules that stay as they are.
    """

    methods: Mapping[str, GridMethod] = field(default_factory=dict)
    patterns: tuple[tuple[str, GridMethod], ...] = ()
    ignore: tuple[str, ...] = ()

    @property
    def single(self) -> dict[str, GridMethod]:
        """Methods of modules that do not match exactly one pattern."""
        known = [re.compile(pattern) for pattern, _ in self.patterns]
        return {name: one for name, one in self.methods.items() if sum(bool(fits.match(name)) for fits in known) != 1}

    def named(self, fit: Fitted) -> dict[str, GridMethod]:
        """Return the methods of modules that must be listed by name, because patterns and the common method do not give
        theirs.
        """
        known = [(re.compile(pattern), one) for pattern, one in self.patterns]
        told = {name: [one for fits, one in known if fits.match(name)] for name in fit.methods}
        return {name: one for name, one in fit.methods.items() if (told[name] or [fit.method]) != [one]}

    def applied(self, run: Run, excluded: tuple[str, ...]) -> Run:
        """Return the run with the modules of `ignore` and `excluded` left alone."""
        return replace(run, common=replace(run.common, ignore=(*self.ignore, *excluded), shared_experts=True))


def by_name(checkpoint: Checkpoint, method: GridMethod, common: Common) -> Mix:
    """Return the methods that the rules of `method.bits` give; raises SqueezeError if a rule matches no matrix."""
    bits = method.bits
    if not isinstance(bits, Bits):
        return Mix(ignore=common.all_ignored)
    ignored = tuple(part for part in common.all_ignored if not any(part in rule.parts for rule in bits.rules))
    network = Network(checkpoint)
    methods, excluded, used = {}, [], set()
    names = _names(network, ignored)
    for name in names:
        rule = next((one for one in bits.rules if one.fits(network.stored_name(name))), None)
        if rule is None:
            continue
        used.add(rule)
        if rule.bits == LEFT:
            excluded.append(name)
        else:
            methods[network.stored_name(name)] = method.replaced(bits=rule.bits)
    if unused := [rule.name for rule in bits.rules if rule not in used and rule.parts != ("",)]:
        raise SqueezeError(f"{checkpoint.folder}: no matrix is named {printable(repr(unused[0]))}, as in `bits`")
    patterns = [(rule.pattern, method.replaced(bits=rule.bits)) for rule in bits.rules if rule.bits != LEFT]
    return Mix(methods, tuple(patterns), (*ignored, *_together(excluded, set(names) - set(excluded))))


def _names(network: Network, ignore: Iterable[str]) -> list[str]:
    return [f"{block}.{leaf}" for block in network.blocks for leaf in plan(network, block, ignore)[0]]


def _together(excluded: Iterable[str], others: Iterable[str]) -> list[str]:
    """Return names of modules to leave alone, with one name for all experts of a layer if none is quantised."""
    layers = {_layer(name) for name in others}
    return list(dict.fromkeys(name if _layer(name) in layers else _layer(name) for name in excluded))


def _layer(name: str) -> str:
    """Return the common prefix of the names of a layer's experts, or the name of another module."""
    return _NUMBER.sub(r"\1", name)


def by_budget(
    run: Run,
    checkpoint: Checkpoint,
    method: GridMethod,
    settings: Quantizing,
    tokens: Inputs,
    outer: Outer = Outer(),  # noqa: B008  it is frozen
) -> Mix:
    """Choose bits for each matrix that lose least within the budget.

    All experts of a layer get the same bits, except in squeeze's own format and dense weights, since other kernels take
    a layer's experts at once.

    Args:
        run: The run.
        checkpoint: The checkpoint.
        method: The method, whose bits are replaced.
        settings: Options with the target and the format.
        tokens: int64 [N, L], the calibration set; samples are refused.
        outer: Methods of embedding and head, whose bytes count.

    Raises:
        SqueezeError: If nothing fits the budget.
    """
    if method.grid != "integer":
        raise SqueezeError(f"the bits of the grid {method.grid} cannot be chosen; those of integer can")
    if isinstance(method.bits, Bits):
        raise SqueezeError("bits are chosen by name or within a size, not both")
    network = Network(checkpoint, run.device)
    names = _names(network, run.common.all_ignored)
    other_bytes = checkpoint.bytes_of(checkpoint.files) - network.checkpoint.bytes_of(
        network.sources[f"{n}.weight"] for n in [*names, *outer.methods]
    )
    other_bytes += outer.bytes_in(make_writer(settings.format, method, outer.stored, checkpoint))

    def rounded(weight: torch.Tensor, bits: int) -> tuple[torch.Tensor, int]:
        candidate, wrong = fitting(method.replaced(bits=bits), settings.format, *weight.shape)
        if candidate is None:
            raise SqueezeError(f"a matrix cannot be stored: {wrong}")
        writer = make_writer(settings.format, candidate, {}, checkpoint)  # refuses what the format does not hold
        tensor = candidate.fallback().compress(weight.bfloat16()).tensor
        if settings.format == DENSE:
            return tensor.dequantize(), -(-tensor.stored_bits // 8)
        stored = writer.tensors("x", tensor, False)
        return tensor.dequantize(), sum(value.nbytes for value in stored.values())

    def budget(weights: int) -> float:
        if settings.target_bits is not None:
            return settings.target_bits * weights / 8
        return (settings.target_bytes or 0) - other_bytes

    apart = settings.format in (DENSE, _OWN)
    units = {name: name if apart or not is_expert(name) else _layer(name) for name in names}
    tokens = only_tokens(tokens, "a choice of bits within a size", "set `bits`")
    sample = tokens[: max(FISHER_TOKENS // tokens.shape[1], 1)]
    selected, _ = allocate(network, sample, units, rounded, budget)
    methods = {network.stored_name(name): method.replaced(bits=selected[unit]) for name, unit in units.items()}
    return Mix(methods, () if apart else _patterns(methods), run.common.all_ignored)


def _patterns(methods: Mapping[str, GridMethod]) -> tuple[tuple[str, GridMethod], ...]:
    """Return a pattern and method for the experts of each layer."""
    found = {}
    for name, method in methods.items():
        if is_expert(name):
            found[re.escape(_layer(name)) + r"\d+\."] = method
    return tuple(found.items())
