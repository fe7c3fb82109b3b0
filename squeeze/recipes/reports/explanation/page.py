"""The HTML page of an explanation. Units are embedded as compressed columns, and the page draws what is in view."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from squeeze.codecs.parse.outline import in_words
from squeeze.errors import OptionError
from squeeze.recipes.reports.explanation.sums import Section, Separated
from squeeze.recipes.reports.explanation.units import DICTIONARY, Names, Units
from squeeze.recipes.reports.html import packed, render as render_page

__all__ = ["Compared", "render"]

_MOST = 16 << 20  # bytes that are shown: browsers place no more rows than so many bytes take
_BITS, _SHARES = 256, 8  # units of a bit in columns
_NOTHING = 0xFFFF
_SECTIONS = 40  # dearest ones, that the page lists
_IN_DICTIONARY = -(1 << 31)  # a distance


class Compared(NamedTuple):
    """Bits of the same bytes at another level, or with another language model."""

    label: str
    coded_size: int
    bits_of_bytes: np.ndarray  # float64 [bytes that are shown]


def render(
    summary: dict[str, Any],
    label: str,
    units: Units,
    names: Names,
    data: np.ndarray,
    against: Compared | None = None,
    separated: Separated | None = None,
    sections: Sequence[Section] = (),
) -> str:
    """Return the page of an explanation.

    Args:
        summary: The explanation's summary.
        label: Its level and language model.
        units: Its units.
        names: What the numbers in units mean.
        data: Bytes of the units, uint8.
        against: What it is compared with.
        separated: Columns of the text.
        sections: Sections of the file.

    Raises:
        OptionError: If it would show more than 16 MiB.
    """
    if data.size > _MOST:
        raise OptionError(f"a page shows {_MOST >> 20} MiB at most: choose a part with `span`")
    columns = _columns(units, data, against)
    facts = {
        "columns": [[name, column.dtype.str[1:], column.size] for name, column in columns.items()],
        "offset": int(units.starts[0]) if len(units) else 0,
        "line": summary["first_line"],
        "how": label,
        "against": against.label if against else None,
        "blocks": [[block["codec"], block["content"]] for block in summary["blocks"]],
        "pieces": summary["pieces"],
        "separator": separated.separator if separated else None,
        "fields": separated.names if separated else (),
        "sections": sections,
        "headings": "wrappers" in summary,
        "parts": names.parts,
        "symbols": [symbol.decode("latin-1") for symbol in names.symbols],
    }
    return render_page(
        "squeeze.recipes.reports.explanation",
        title=summary["file"] or "bytes",
        summary=summary,
        how=label,
        opened=in_words(summary.get("wrappers", {})),
        against=against,
        sections=sorted(summary["sections"].items(), key=lambda item: -item[1]["bits"])[:_SECTIONS],
        facts=facts,
        data=packed(b"".join(column.tobytes() for column in columns.values())),
    )


def _columns(units: Units, data: np.ndarray, against: Compared | None) -> dict[str, np.ndarray]:
    """Return the arrays to embed by name, wider dtypes first so that each is aligned, without empty ones."""
    columns = {
        "distances": _distances(units),
        "bits": _fixed(units.bits, _BITS),
        "sizes": (units.ends - units.starts).astype(np.uint16),
        "model_bits": np.where(np.isnan(units.model_bits), _NOTHING, _fixed(np.nan_to_num(units.model_bits), _BITS)),
        "symbols": np.where(units.symbols < 0, _NOTHING, units.symbols),
        "other_bits": _fixed(against.bits_of_bytes if against else np.zeros(0), _BITS),
        "lengths": np.minimum(units.lengths, 255),
        "rivals": np.round(units.rivals * 255),
        "rival_shifts": units.rival_shifts,
        "chances": np.round(units.chances * 255),
        "parts": units.parts,
        "shares": np.clip(np.round(units.shares * _SHARES), -127, 127),
        "data": data,
    }
    kinds = {"distances": "<i4", "shares": "<i1"} | dict.fromkeys(
        ("bits", "sizes", "model_bits", "symbols", "other_bits"), "<u2"
    )
    idle = {
        "sizes": (columns["sizes"] == 1).all(),
        "model_bits": (columns["model_bits"] == _NOTHING).all(),
        "symbols": (columns["symbols"] == _NOTHING).all(),
        "chances": (columns["symbols"] == _NOTHING).all(),
        "other_bits": against is None,
    }
    return {
        name: np.ascontiguousarray(column, kinds.get(name, "u1"))
        for name, column in columns.items()
        if not idle.get(name, False)
    }


def _fixed(values: np.ndarray, one: int) -> np.ndarray:
    return np.clip(np.round(values.astype(np.float64) * one), 0, _NOTHING - 1)


def _distances(units: Units) -> np.ndarray:
    """Return the distance from each unit back to its match in bytes, negative in a dictionary, 0 without a match."""
    back = np.where(units.sources == DICTIONARY, _IN_DICTIONARY, units.starts - units.sources)
    return np.where(units.lengths == 0, 0, back)
