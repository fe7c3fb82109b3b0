"""Options, declared once: a field of a dataclass says what it is, and commands, recipes, Python and the docs read that.

    damping: float = option(0.01, "Share of the Hessian's mean diagonal added to it.", least=0)

A field without `option` is for Python alone. Neither click nor torch is imported here.
"""

from squeeze.options.operation import Asked, Operation
from squeeze.options.option import Checked, Option, check, of, option, values_of
from squeeze.options.registry import Lazy, Reference, load, options_of

__all__ = [
    "Asked",
    "Checked",
    "Lazy",
    "Operation",
    "Option",
    "Reference",
    "check",
    "load",
    "of",
    "option",
    "options_of",
    "values_of",
]
