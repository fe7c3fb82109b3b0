"""Results of `squeeze.explain`: arrays of units, their sums, and their forms as JSON, text and HTML."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from squeeze.codecs.parse.outline import in_words
from squeeze.codecs.stream.container import WITH_RECORDS
from squeeze.recipes.reports.explanation import sheets, sums
from squeeze.recipes.reports.explanation.page import Compared, render
from squeeze.recipes.reports.explanation.sums import Lines, Section, Separated, Span, Total
from squeeze.recipes.reports.explanation.units import DICTIONARY, NO_SHIFT, Names, Piece, Units
from squeeze.recipes.reports.html import frame

__all__ = ["BlockCost", "Explanation"]

_DEAREST = 20  # lines that the JSON names
_PARTS = 8  # of the models, that the table names
_SECTIONS = 12  # of the file, that the table names


@dataclass(frozen=True)
class BlockCost:
    """A block of the file, or a part of one that is split or has opened wrappers."""

    start: int  # its first byte in the file
    end: int  # behind its last one
    size: int  # bytes that are shown: fewer than those between if other parts' bytes are among them
    codec: str  # "bytewise" (levels 1 to 6), "tokenwise" (a language model) or "stored"
    content: str
    payload: int  # coded bytes, with a few that say what the block holds and that end the coder
    overhead: int  # bytes of its header
    bits: float  # what its units cost


@dataclass(frozen=True, repr=False)
class Explanation:
    """The bits of every unit of a file, a byte or a token, and the predictions of its model.

    It has arrays (`units`, `bits_of_bytes`), totals (`blocks`, `by_content`, `by_class`, `lines`, `saved`) and the
    forms `as_json()`, `to_html()` and `table()`. `units` covers `span`, the requested bytes. `blocks` and `saved` cover
    the whole file.

    A binary decision without a prediction costs one bit. What the mixed prediction saves of it is shared among the
    models in proportion to what each adds to the logit (integrated gradients, Sundararajan, Taly and Yan 2017,
    arXiv:1703.01365). `saved` and `units.shares` are in these bits, negative if a model did harm.
    """

    name: str
    level: int  # 0 where nothing is coded
    data: bytes  # all that is shown: the raw bytes, with wrappers opened
    span: tuple[int, int]
    raw_size: int
    coded_size: int
    blocks: tuple[BlockCost, ...]
    pieces: tuple[Piece, ...]  # of the blocks, whose parts take turns
    units: Units
    names: Names
    saved: dict[str, float]  # bits that each part of the models saved, by size: see `squeeze.explain`
    wrappers: dict[str, int]  # the number of opened wrappers of each kind
    segments: tuple[Section, ...]  # the contents of wrappers
    model: str = ""  # the name of the language model, where one was named
    against: "Explanation | None" = None  # the same bytes at another level, or by another language model

    @property
    def label(self) -> str:
        """The level, and the language model if one was named."""
        return f"level {self.level}{f' with {self.model}' if self.model else ''}"

    @property
    def bits(self) -> float:
        """Bits of all units."""
        return float(self.units.bits.sum(dtype=np.float64))

    @cached_property
    def bits_of_bytes(self) -> np.ndarray:
        """Bits of each byte of the span, float64."""
        return self.units.bits_of_bytes()

    @property
    def complete_bytes(self) -> np.ndarray:
        """Bytes of the span that are in whole units, uint8."""
        if not len(self.units):
            return np.zeros(0, np.uint8)
        begin, end = int(self.units.starts[0]), int(self.units.ends[-1])
        return np.frombuffer(self.data, np.uint8)[begin:end]

    @cached_property
    def _is_text(self) -> np.ndarray:
        """Mask of the shown bytes that are in text blocks, bool."""
        begin = int(self.units.starts[0]) if len(self.units) else 0
        is_text = np.zeros(self.complete_bytes.size, bool)
        for start, end, number in self.pieces:
            if self.blocks[number].content in ("text", "lines"):
                is_text[max(start - begin, 0) : max(end - begin, 0)] = True
        return is_text

    @property
    def by_class(self) -> dict[str, Total]:
        """Totals by class of byte, over texts."""
        return sums.by_class(self.complete_bytes[self._is_text], self.bits_of_bytes[self._is_text])

    @cached_property
    def separated(self) -> Separated | None:
        """Columns of the shown text, if it is a table such as CSV and starts at a line."""
        starts_line = self.span[0] == 0 or self.data[self.span[0] - 1] == 10
        return sums.separated(self.complete_bytes) if starts_line and self._is_text.all() else None

    @property
    def by_column(self) -> dict[str, Total]:
        """Totals by column of a CSV text or a spreadsheet, or by place in the record of binary tables; empty for other
        content."""
        if self.separated:
            return self.separated.by_column(self.bits_of_bytes)
        if self.complete_bytes.size == len(self.data) and (found := sheets.by_column(self.data, self.bits_of_bytes)):
            return found
        begin = int(self.units.starts[0]) if len(self.units) else 0
        end, spans = begin + self.complete_bytes.size, []
        for block in self.blocks:
            kind, _, record = block.content.partition(" ")
            first, last = max(block.start, begin), min(block.end, end)
            if kind in WITH_RECORDS and first < last and block.size == block.end - block.start:
                spans.append(Span(first - begin, last - begin, int(record), (first - block.start) % int(record)))
        return sums.by_place(self.bits_of_bytes, spans)

    @cached_property
    def sections(self) -> tuple[Section, ...]:
        """The contents of wrappers; else sections of a program, or tensors of a safetensors file, as the file's own
        header lists them."""
        return self.segments or sums.sections_of(self.data)

    @property
    def by_section(self) -> dict[str, Total]:
        """Totals by section, and of the bytes outside all sections."""
        begin = int(self.units.starts[0]) if len(self.units) else 0
        return sums.by_section(self.sections, self.bits_of_bytes, begin, sums.AROUND if self.segments else sums.BETWEEN)

    @property
    def by_content(self) -> dict[str, Total]:
        """Totals by content of blocks, over the whole file."""
        found: dict[str, Total] = {}
        for block in self.blocks:
            before = found.get(block.content, Total(0, 0.0))
            found[block.content] = Total(before.size + block.size, before.bits + block.bits)
        return found

    @property
    def lines(self) -> Lines:
        begin = int(self.units.starts[0]) if len(self.units) else 0
        return sums.by_line(self.complete_bytes, self.bits_of_bytes, begin)

    def summary(self) -> dict[str, Any]:
        """Return everything except the units, as JSON values."""
        lines, first = self.lines, self.data.count(b"\n", 0, self.span[0]) + 1
        dearest = np.argsort(-lines.bits, kind="stable")[:_DEAREST]
        return {
            "file": self.name,
            "level": self.level,
            "model": self.model,
            "raw_size": self.raw_size,
            "coded_size": self.coded_size,
            **({"opened_size": len(self.data), "wrappers": self.wrappers} if self.wrappers else {}),
            "range": list(self.span),
            "first_line": first,
            "bits": round(self.bits, 3),
            "blocks": [vars(block) | {"bits": round(block.bits, 3)} for block in self.blocks],
            "pieces": [list(piece) for piece in self.pieces],
            "contents": _as_json(self.by_content),
            "classes": _as_json(self.by_class),
            "columns": _as_json(self.by_column),
            "sections": _as_json(self.by_section),
            "saved": {name: round(bits, 1) for name, bits in self.saved.items()},
            "dearest_lines": [
                {
                    "line": int(i) + first,
                    "start": int(lines.starts[i]),
                    "end": int(lines.ends[i]),
                    "bits": round(float(lines.bits[i]), 2),
                }
                for i in dearest
            ],
        }

    def table(self) -> str:
        """Return the totals as text."""
        record = self.summary()
        lines = [f"{self.name}: {self.raw_size:,} bytes, {self.coded_size:,} at {self.label}", ""]
        if self.wrappers:
            lines.insert(1, f"opened: {in_words(self.wrappers)}, {len(self.data):,} bytes with their contents")
        for heading in ("contents", *filter(record.get, ("classes", "columns", "sections"))):
            lines.append(f"{heading:<26}{'bytes':>12}{'coded':>12}{'bits a byte':>13}")
            dearest = sorted(record[heading].items(), key=lambda item: -item[1]["bits"])[:_SECTIONS]
            for name, total in dearest if heading == "sections" else record[heading].items():
                coded = total["bits"] / 8
                lines.append(f"  {name:<24}{total['bytes']:>12,}{coded:>12,.0f}{total['bits_per_byte']:>13.2f}")
        lines.append(f"{'bytes saved by':<26}")
        for name, bits in list(record["saved"].items())[:_PARTS]:
            lines.append(f"  {name:<36}{bits / 8:>12,.0f}")
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        """Return the summary and all units, in columns."""
        record = self.summary() | {"units": _columns(self.units, self.names)}
        if self.against:
            record["against"] = self.against.as_json()
        return record

    def to_html(self) -> str:
        """Return a self-contained HTML page; raises OptionError above 16 MiB."""
        other = self.against
        against = Compared(other.label, other.coded_size, other.bits_of_bytes) if other else None
        shown = (self.units, self.names, self.complete_bytes)
        return render(self.summary(), self.label, *shown, against, self.separated, self.sections)

    def __repr__(self) -> str:
        about = f"{self.raw_size} bytes, {self.coded_size} at {self.label}, {len(self.units)} units"
        return f"<Explanation of {self.name or 'bytes'}: {about}>"

    def _repr_html_(self) -> str:
        return frame(self.to_html(), "Where the bits go")


def _as_json(totals: dict[str, Total]) -> dict[str, Any]:
    return {
        name: {"bytes": total.size, "bits": round(total.bits, 3), "bits_per_byte": round(total.bits_per_byte, 4)}
        for name, total in totals.items()
    }


def _columns(units: Units, names: Names) -> dict[str, Any]:
    """Return the units as lists by field."""
    return {
        "start": units.starts.tolist(),
        "size": (units.ends - units.starts).tolist(),
        "bits": np.round(units.bits.astype(np.float64), 4).tolist(),
        "model_bits": [None if np.isnan(bits) else round(bits, 4) for bits in units.model_bits.tolist()],
        "rival_shift": [None if shift == NO_SHIFT else shift for shift in units.rival_shifts.tolist()],
        "rival": np.round(units.rivals.astype(np.float64), 4).tolist(),
        "match": [
            None if not length else {"source": "dictionary" if source == DICTIONARY else source, "length": length}
            for source, length in zip(units.sources.tolist(), units.lengths.tolist(), strict=True)
        ],
        "parts": [
            {names.parts[part]: round(share, 3) for part, share in zip(parts, shares, strict=True) if share}
            for parts, shares in zip(units.parts.tolist(), units.shares.tolist(), strict=True)
        ],
        "expected": [
            [
                [names.symbols[symbol].decode("latin-1"), round(chance, 4)]
                for symbol, chance in zip(symbols, chances, strict=True)
                if symbol >= 0
            ]
            for symbols, chances in zip(units.symbols.tolist(), units.chances.tolist(), strict=True)
        ],
    }
