"""Options of the methods that choose experts, and the methods by name.

Nothing here imports torch, because `--help` reads it. A method chooses the experts that stay (choosing.py), and may
merge the others into them (merging.py). What stays is then fitted (fitting.py).
"""

from dataclasses import dataclass

from squeeze.options import Checked, Lazy, Reference, option

__all__ = ["METHODS", "FittedOptions", "MergeOptions", "NormOptions"]


@dataclass(frozen=True, kw_only=True)
class FittedOptions(Checked):
    """Options of methods that fit the kept experts to what the layer computed before (fitting.py)."""

    fit: int = option(2, "Rounds that fit each kept expert's last matrix to the layer's former outputs", least=0)
    damping: float = option(0.03, "Damping of that fit, as a share of the mean square of its inputs", above=0)


@dataclass(frozen=True, kw_only=True)
class MergeOptions(FittedOptions):
    """Options of merging (merging.py).

    Experts are compared by what they return for the same tokens, which takes as many products as there are experts. So
    only some tokens of each are taken.
    """

    pairs: int = option(256, "Tokens of each expert on which experts are compared", least=1)


@dataclass(frozen=True, kw_only=True)
class NormOptions(Checked):
    """Options of keeping the experts with the largest weights, which has no options."""


METHODS: dict[str, Reference] = {
    "reap": Lazy(FittedOptions, "squeeze.prune.experts.choosing:REAP"),
    "merge": Lazy(MergeOptions, "squeeze.prune.experts.merging:Merge"),
    "norm": Lazy(NormOptions, "squeeze.prune.experts.choosing:Norm"),
}
