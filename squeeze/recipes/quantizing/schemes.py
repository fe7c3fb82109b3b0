"""A scheme of compressed-tensors as what a method is told of its grid."""

from squeeze.errors import OptionError
from squeeze.options import Request
from squeeze.quant.method import GridMethod
from squeeze.quant.methods import SCHEMES
from squeeze.recipes.options import Quantizing

__all__ = ["method_of_scheme"]

_SAID = ("bits", "group_size", "symmetric", "grid")  # by a scheme itself


def method_of_scheme(asked: Request[Quantizing]) -> GridMethod:
    """The method on the grid of the scheme, if one is asked for. Raises OptionError for options that do not go with
    it."""
    settings = asked.settings
    made: GridMethod = asked.create_method()
    if settings.scheme is None:
        return made
    scheme = SCHEMES[settings.scheme]
    if not isinstance(asked.method, str):
        raise OptionError("a scheme goes with a method that is named")
    own = "group_size" in asked.given and scheme.any_group
    if said := [name for name in _SAID if name in asked.given and not (own and name == "group_size")]:
        raise OptionError(f"{said[0]} does not go with the scheme {settings.scheme}, which says it")
    if not isinstance(made, GridMethod):
        raise OptionError(f"a scheme goes with methods on grids, and {made.name} is none")
    if settings.target_bits is not None or settings.target_bytes is not None:
        raise OptionError("the bits of a scheme cannot be chosen by size")
    if getattr(made, "dynamic", False) or getattr(made, "outliers", 0):
        raise OptionError("a scheme has neither dynamic scales nor outlier columns")
    return made.replaced(
        grid=scheme.grid,
        bits=scheme.bits,
        group_size=made.group_size if own else scheme.group_size,
        symmetric=scheme.symmetric,
        activations=scheme.activations,
    )
