"""Options of loading packed models and differences. None of them is ever read from a model's files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from squeeze.errors import OptionError, printable
from squeeze.options import size_of

__all__ = ["LARGE_SHARE", "PRODUCTS", "LoadOptions", "current", "load_options"]

PRODUCTS = ("exact", "fused")  # torch's, of the decoded weight, or our own while it is decoded
LARGE_SHARE = 16  # a linear weight of more than this part of the model is decoded some rows at a time


@dataclass(frozen=True)
class LoadOptions:
    """The options of `load_options`."""

    base: Path | str | None = None
    resident: int = 0
    product: str = PRODUCTS[0]
    check: bool = True
    large_share: int = LARGE_SHARE

    def __post_init__(self) -> None:
        if self.product not in PRODUCTS:
            raise OptionError(f"expected a product of {', '.join(PRODUCTS)}, got {printable(repr(self.product))}")


_current: ContextVar[LoadOptions] = ContextVar("squeeze_load_options", default=LoadOptions())  # noqa: B039  frozen


@contextmanager
def load_options(
    *,
    base: Path | str | None = None,
    resident: int | str = 0,
    product: str = PRODUCTS[0],
    check: bool = True,
    large_share: int = LARGE_SHARE,
) -> Iterator[None]:
    """Set options for every model that transformers or diffusers loads within the block.

    Args:
        base: Base of a difference (`squeeze delta`, `squeeze pack --base`), packed or not. By default it is searched
            next to the folder.
        resident: Bytes, or a text such as "2G", of large weights that are decoded once and kept.
        product: "exact", or "fused", which multiplies weights while it decodes them, in float32.
        check: Whether weights that stay coded are decoded once at loading and compared with their checksums. Use False
            for a folder that `squeeze verify` has just checked.
        large_share: A linear weight of more than 1 / large_share of the model's bytes is decoded some rows at a time; 0
            decodes every weight whole.
    """
    size = size_of(resident) if isinstance(resident, str) else resident
    token = _current.set(LoadOptions(base, size, product, check, large_share))
    try:
        yield
    finally:
        _current.reset(token)


def current() -> LoadOptions:
    """Return the options of the enclosing `load_options` block."""
    return _current.get()
