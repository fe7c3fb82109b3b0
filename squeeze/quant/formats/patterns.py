"""Regular expressions that a folder has for names of modules: those that could take long are refused.

Python's `re` tries one way after the other to fit an expression to a name. How many there are is bounded from what the
expression says, so that none of a known size is refused, whatever it means.
"""

import re
import warnings
from functools import lru_cache
from math import comb

from squeeze.errors import FormatError, printable

__all__ = ["fits"]

_LONGEST = 4096  # characters of an expression
_MOST_WAYS = 10**7  # to fit it to a name: about a second
_LETTER = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)  # an escaped letter, or a class of letters
_MARK = re.compile(r"\(\?(?:[:=!>]|<[=!]|P<\w+>)")  # what a group begins with
_COUNTED = re.compile(r"\{\d*,?\d*\}")
_ONE_WAY = re.compile(r"(?<=[*+?])[?+]")  # lazy, or possessive
_COMMENT = re.compile(r"\(\?(?:#|[a-zA-Z-]*x)")  # in which brackets mean nothing
_REPEATED = re.compile(r"\)[*+]")
_REPEATS = re.compile(r"[*+]")


def fits(pattern: str, name: str) -> bool:
    """Whether a name begins with what a regular expression fits. Raises FormatError where it is none, or one that could
    take long."""
    compiled, repeats, choices = _read(pattern)
    if choices * comb(len(name) + repeats, repeats) > _MOST_WAYS:
        raise _refused(pattern, "could take long: let it repeat and choose less")
    return compiled.match(name) is not None


@lru_cache(maxsize=1024)
def _read(pattern: str) -> tuple[re.Pattern[str], int, int]:
    """An expression, how many letters in it are repeated, and a bound of the ways to choose what it lets choose."""
    if len(pattern) > _LONGEST:
        raise _refused(pattern, f"has {len(pattern)} characters, and at most {_LONGEST} are taken")
    try:
        with warnings.catch_warnings(action="ignore"):  # of what another version of Python may take otherwise
            compiled = re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise _refused(pattern, f"is no regular expression: {printable(error)}") from None
    if _COMMENT.search(pattern):
        raise _refused(pattern, "has comments, which are not taken")
    bare = _ONE_WAY.sub("", _COUNTED.sub("*", _MARK.sub("(", _LETTER.sub("x", pattern))))
    if _REPEATED.search(bare):
        raise _refused(pattern, "could take long: it repeats a group")
    return compiled, len(_REPEATS.findall(bare)), _choices(bare)


def _choices(bare: str) -> int:
    """The product of the branches of all groups, and of 2 for all that may be left out."""
    product, branches = 1 << bare.count("?"), [1]
    for letter in bare:
        if letter == "(":
            branches.append(1)
        elif letter == "|":
            branches[-1] += 1
        elif letter == ")" and len(branches) > 1:
            product *= branches.pop()
    return product * branches[0]


def _refused(pattern: str, fault: str) -> FormatError:
    return FormatError(f"the pattern {printable(repr(pattern))} in the quantization_config {fault}")
