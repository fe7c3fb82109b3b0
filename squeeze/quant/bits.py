"""Bits by module name, such as `experts=2,attention=4,8`: the first matching name counts, a number alone is for the
rest."""

import re
from dataclasses import dataclass
from typing import Self

from squeeze.checkpoint.architectures import SHARED_EXPERTS
from squeeze.errors import OptionError, printable

__all__ = ["LEFT", "Bits", "Rule"]

LEFT = 16  # bits that mean: not quantised
_DEFAULT = 4
_OTHERS = "others"
_EXPERTS = ".experts."
_NAMES: dict[str, tuple[str, ...]] = {
    "experts": (_EXPERTS,),
    "shared_experts": SHARED_EXPERTS,
    "attention": ("attn.", "attention."),
    "mlp": (".mlp.", ".feed_forward.", ".block_sparse_moe."),
    _OTHERS: ("",),
}


@dataclass(frozen=True)
class Rule:
    """The bits of modules whose names contain one of `parts`, and not `excluded_part`."""

    name: str
    parts: tuple[str, ...]
    bits: int
    excluded_part: str = ""

    @classmethod
    def of(cls, name: str, bits: int) -> Self:
        return cls(name, _NAMES.get(name, (name,)), bits, _EXPERTS if name == "mlp" else "")

    def fits(self, module: str) -> bool:
        return re.match(self.pattern, module) is not None

    @property
    def pattern(self) -> str:
        """A regular expression that matches the module names of this rule from their start."""
        wanted = f".*(?:{'|'.join(map(re.escape, self.parts))})"
        return f"(?!.*{re.escape(self.excluded_part)}){wanted}" if self.excluded_part else wanted


class Bits(int):
    """A default number of bits, with rules for modules by name."""

    rules: tuple[Rule, ...]

    @classmethod
    def of(cls, bits: int, rules: tuple[Rule, ...]) -> Self:
        made = cls(bits)
        made.rules = rules
        return made

    @classmethod
    def parse(cls, text: str) -> int:
        """Parse "4", or "experts=2,attention=4,8".

        A number alone is for all other modules; 16 leaves matrices unquantised. A name that is not a known kind of
        module matches any module whose name contains it. Raises OptionError for other text.
        """
        default, rules = None, []
        for entry in text.split(","):
            name, equals, number = entry.strip().rpartition("=")
            if not (number.isascii() and number.isdigit()) or bool(equals) != bool(name) or len(number) > 2:
                raise OptionError(f"bits {printable(repr(text))}: expected 4, or rules as in experts=2,attention=4,8")
            if name:
                rules.append(Rule.of(name, int(number)))
            elif default is not None:
                raise OptionError(f"bits {printable(repr(text))}: expected one number without a name, got two")
            else:
                default = int(number)
        if default == LEFT and rules:
            rules, default = [*rules, Rule.of(_OTHERS, LEFT)], None
        return cls.of(default or _DEFAULT, tuple(rules)) if rules else int(default or 0)

    def __str__(self) -> str:
        return ",".join([*(f"{rule.name}={rule.bits}" for rule in self.rules), str(int(self))])

    __repr__ = __str__
