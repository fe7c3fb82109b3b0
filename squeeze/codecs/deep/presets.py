"""Parameters of levels 4 to 6: the contexts for each kind of content, and the sizes of mixers and hash tables.

The tables are part of the format. A context is two history registers (bitmodels/context_state.py), a mask on the first,
and a mask on the last eight bytes.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from squeeze.codecs.bytewise.presets import warm_start
from squeeze.codecs.content import CODES
from squeeze.numerics.bitmodels import cells, context_state as state, copied, fields, records, strides

Context = tuple[int, int, int, int]
_ALL = (1 << 64) - 1


@dataclass(frozen=True)
class DeepPreset:
    """The parameters of deep context mixing."""

    contexts: tuple[Context, ...]
    matches: tuple[int, ...]  # shortest match of each match model, in bytes
    selectors: int  # mixer weight sets that are used
    buckets: int  # largest hash table, in buckets of 192 bytes
    rates: tuple[float, ...]  # learning rates, see arrays.py
    network: bool = False  # whether the byte network (codecs/recurrent) takes part
    lines: bool = False  # whether the registers of fields.py are updated
    warm_start: str = ""  # file of the package with the first weights (codecs/stream/dictionary.py); "": untrained
    machine: int = 0  # that of code: 1 for x86, or a number of risc.py


# The third and fourth context of every table also choose weight sets, so they are orders 2 and 3.
def _order(n: int) -> Context:
    if n <= 8:
        return (state.NONE, 0, state.NONE, (1 << 8 * n) - 1)
    return (state.OLDER, (1 << 8 * (n - 8)) - 1, state.NONE, _ALL)


def _pair(first: int, second: int = state.NONE, history: int = 0, mask: int = _ALL) -> Context:
    return (first, mask, second, history)


_WORDS = {
    "word": _pair(state.WORD),
    "word and the one before": _pair(state.WORD, state.WORD_1),
    "word and the second before": _pair(state.WORD, state.WORD_2),
    "word and two before": _pair(state.WORD, state.PAIR),
    "word and byte": _pair(state.WORD, history=0xFF),
}
_FOLLOWED = {
    "what followed the byte": _pair(state.FOLLOWED, history=0xFF, mask=0xFFFF),
    "what followed two bytes": _pair(state.FOLLOWED, history=0xFF, mask=0xFFFF0000),
    "what followed three bytes": _pair(state.FOLLOWED, history=0xFF, mask=0xFFFF00000000),
}
_EXPECTED = {"match and byte": _pair(state.MATCH, history=0xFF, mask=0xFFFF)}
_TWO_MATCHES = {"two matches": _pair(state.MATCH, mask=0x3FFFFF)}
_OPEN = 0xFF00FF  # of BRACKET: the innermost bracket that is open, and the one outside it
TEXT = {
    **{f"order {n}": _order(n) for n in (0, 1, 2, 3, 4, 5, 6, 8)},
    **_WORDS,
    **_FOLLOWED,
    "classes of twelve bytes": _pair(state.CLASSES, mask=0xFFFFFFFFFFFF),
    "line above": _pair(state.LINE, mask=0xFF0000FF),
    "outline of the line": _pair(state.OUTLINE, history=0xFF),
    "head of the line and word": _pair(state.LINE_HEAD, state.WORD),
    "bracket": _pair(state.BRACKET, history=0xFFFF, mask=0xFFFF),
    "brackets and byte": _pair(state.BRACKET, history=0xFF, mask=_OPEN),
    "brackets and tag": _pair(state.BRACKET, state.TAG, mask=_OPEN),
    "brackets and head of the line": _pair(state.BRACKET, state.LINE_HEAD, mask=_OPEN),
    "brackets and outline of the line": _pair(state.BRACKET, state.OUTLINE, mask=_OPEN),
    "column and classes of two bytes": _pair(state.LINE, history=0xE0E0, mask=0xFF0000),
    "classes of four bytes and the word before": _pair(state.CLASSES, state.WORD_1, mask=0xFFFF),
    **_EXPECTED,
}
_NOT_OF_LINES = {  # contexts of TEXT that gain least next to those of lines
    *("line above", "bracket", "brackets and head of the line", "brackets and outline of the line"),
    "column and classes of two bytes",
}
_ABOVE, _ALIKE = state.FIELDS + fields.ABOVE, state.FIELDS + fields.ALIKE
_FORM = {  # of lines, fields and numbers
    "line of the same form": _pair(_ALIKE, mask=0xFFFFFF),
    "field above and its number": _pair(_ABOVE, mask=0xFF0000FF),
    "three marks and byte": _pair(state.FIELDS + fields.MARKS, history=0xFF, mask=0xFFFFFF),
    "cell and key": _pair(state.FIELDS + fields.CELL_KEY),
    "cell and its number": _pair(state.FIELDS + fields.CELL_PLACE),
    "number by difference": _pair(state.FIELDS + fields.NUMBER),
    "line of the same form and mark": _pair(_ALIKE, mask=0xFF0000FF),
    "key and two bytes": _pair(state.FIELDS + fields.KEY, history=0xFFFF),
    "cell, its number and the cell above": _pair(state.FIELDS + fields.CELL_PLACE, state.FIELDS + fields.UP),
    "field above and agreement": _pair(_ABOVE, mask=0xFFFFFF),
}
LINES = {name: context for name, context in TEXT.items() if name not in _NOT_OF_LINES} | _FORM
_SPARSE = {
    "bytes 2 and 3": (state.NONE, 0, state.NONE, 0xFFFF00),
    "bytes 1 and 3": (state.NONE, 0, state.NONE, 0xFF00FF),
    "bytes 2 to 4": (state.NONE, 0, state.NONE, 0xFFFFFF00),
    "bytes 3 and 4": (state.NONE, 0, state.NONE, 0xFFFF0000),
    "high halves": (state.NONE, 0, state.NONE, 0xF0F0F0FF),
    "byte 4 in fours": (state.POSITION, 3, state.NONE, 0xFF000000),
    "byte 1 in fours": (state.POSITION, 3, state.NONE, 0xFF),
}
_NEAR, _STRIDE = state.STRIDES + strides.NEAR, 0xFFFF << 32
_STRIDES = {  # of records whose length is not known
    "above by stride and byte": _pair(_NEAR, history=0xFF, mask=_STRIDE | 0xFF),
    "two above by stride": _pair(_NEAR, mask=_STRIDE | 0xFFFF),
    "two above by any stride, left and byte": _pair(_NEAR, history=0xFF, mask=0xFF00FFFF),
    "zeros among eight bytes": _pair(state.STRIDES + strides.ZEROS),
}
OTHER = {
    **{f"order {n}": _order(n) for n in (0, 1, 2, 3, 4, 5, 6, 8)},
    "word": _pair(state.WORD),
    **_FOLLOWED,
    **_SPARSE,
    "instructions": _pair(state.OPCODES, mask=0xFFFFFF),
    "instructions and byte": _pair(state.OPCODES, history=0xFF, mask=0xFFFF),
    "bytes 5 to 8": (state.NONE, 0, state.NONE, 0xFFFFFFFF00000000),
    "byte 3": (state.NONE, 0, state.NONE, 0xFF0000),
    "operand, instruction and byte": _pair(state.OPCODES, state.SKIP, history=0xFF, mask=0xFF),
    **_STRIDES,
    **_EXPECTED,
    **_TWO_MATCHES,
}
_PLACE, _OPCODE = 0x3FF, 0xFFFFF  # of INSTRUCTION: where the next byte is in it; that, its opcode and map
EXECUTABLE = {
    **{f"order {n}": _order(n) for n in (0, 1, 2, 3, 4, 5, 6, 8)},
    **_FOLLOWED,
    **{name: context for name, context in _SPARSE.items() if "fours" not in name},
    "bytes 5 to 8": OTHER["bytes 5 to 8"],
    "byte 3": OTHER["byte 3"],
    "instruction": _pair(state.INSTRUCTION),
    "instruction and byte": _pair(state.INSTRUCTION, history=0xFF),
    "instruction and the one before": _pair(state.INSTRUCTIONS, state.INSTRUCTION, mask=0xFFFF),
    "instruction and two before": _pair(state.INSTRUCTIONS, state.INSTRUCTION, mask=0xFFFFFFFF),
    "instruction and three before": _pair(state.INSTRUCTIONS, state.INSTRUCTION, mask=0xFFFFFFFFFFFF),
    "instruction and three opcodes before": _pair(state.INSTRUCTIONS, state.INSTRUCTION, mask=0x3FF03FF03FF),
    "opcode and two bytes": _pair(state.INSTRUCTION, history=0xFFFF, mask=_OPCODE),
    "place in the instruction and three bytes": _pair(state.INSTRUCTION, history=0xFFFFFF, mask=_PLACE),
    **_EXPECTED,
    **_TWO_MATCHES,
}
_NOT_OF_CODE = {  # contexts of EXECUTABLE that gain least next to those of instructions of 4 bytes
    *("order 5", "what followed three bytes", "high halves", "bytes 5 to 8", "bytes 3 and 4"),
}
CODE = {  # of machines other than x86
    **{name: context for name, context in EXECUTABLE.items() if name not in _NOT_OF_CODE},
    "place in the instruction and byte 4": _pair(state.INSTRUCTION, history=0xFF000000, mask=7),
    "place in the instruction, bytes 1 and 4": _pair(state.INSTRUCTION, history=0xFF0000FF, mask=7),
    "place in the instruction, bytes 4 and 8": _pair(state.INSTRUCTION, history=0xFF000000FF000000, mask=7),
    "instruction and register before": _pair(state.INSTRUCTIONS, state.INSTRUCTION, mask=0x7C00),
    "instruction and two registers before": _pair(state.INSTRUCTIONS, state.INSTRUCTION, mask=0x7C007C00),
}
_COUNT, _LINEAR = state.RECORDS + records.COUNT, state.RECORDS + records.LINEAR
TABLE = {
    **{f"order {n}": _order(n) for n in (0, 1, 2, 3, 4, 6, 8)},
    **_FOLLOWED,
    **{name: _SPARSE[name] for name in ("bytes 2 and 3", "bytes 1 and 3", "high halves")},
    "two above and column": _pair(state.RECORD, mask=0xFFFFFFFF),
    "above and column": _pair(state.RECORD, mask=0xFFFF00FF),
    "column": _pair(state.RECORD, mask=0xFFFF0000),
    "two above": _pair(state.RECORD, mask=0xFFFF),
    "above and byte": _pair(state.RECORD, history=0xFF, mask=0xFF),
    "column and byte": _pair(state.RECORD, history=0xFF, mask=0xFFFF0000),
    "above, column and byte": _pair(state.RECORD, history=0xFF, mask=0xFFFF00FF),
    "count, above and its right": _pair(_COUNT),
    "expected by the bytes above, and column": _pair(_LINEAR, mask=0xFFFF00FF),
    "expected by the bytes to the left, and column": _pair(_LINEAR, mask=0xFFFFFF00),
    "two expected bytes": _pair(_LINEAR, mask=0xFFFF),
    "column and bytes 5 to 8": _pair(state.RECORD, history=0xFFFFFFFF << 32, mask=0xFFFF0000),
    **_EXPECTED,
    **_TWO_MATCHES,
}
_CELL, _UNUSUAL, _BEFORE = (state.CELLS + register for register in (cells.CELL, cells.UNUSUAL, cells.BEFORE))
_NOT_OF_CELLS = {  # contexts of TABLE that gain least next to those of cells
    *("what followed three bytes", "column", "bytes 1 and 3", "high halves", "column and bytes 5 to 8"),
}
CELLS = {  # cells of spreadsheets and other records with a number each
    **{name: context for name, context in TABLE.items() if name not in _NOT_OF_CELLS},
    "cell": _pair(_CELL),
    "cell, bytes 9 to 12 and byte": _pair(state.OLDER, _CELL, mask=0xFFFFFFFF, history=0xFF),
    "cell and unusual byte": _pair(_UNUSUAL, _CELL),
    "cell and byte before": _pair(_BEFORE, _CELL, mask=0xFF),
    "byte before": _pair(_BEFORE, mask=0xFF),
    "two bytes before": _pair(_BEFORE, mask=0xFFFF),
    "three bytes before": _pair(_BEFORE, mask=0xFF0000FFFF),
    "byte before, place and byte": _pair(_BEFORE, history=0xFF, mask=0xFFFF00FF),
}
MORE_TEXT = {  # at level 6: small gains each
    "column and byte": _pair(state.LINE, history=0xFF, mask=0xFF0000),
    "bracket and word": _pair(state.BRACKET, state.WORD, mask=0xFF),
    "classes of six bytes and word": _pair(state.CLASSES, state.WORD, mask=0xFFFFFF),
    "classes of eight bytes and two": _pair(state.CLASSES, history=0xFFFF, mask=0xFFFFFFFF),
    "outline of the line and word": _pair(state.OUTLINE, state.WORD),
    "match and word": _pair(state.MATCH, state.WORD, mask=0x1FFF),
    "head of the line and two bytes": _pair(state.LINE_HEAD, history=0xFFFF),
    "three words before": _pair(state.WORD_3, state.PAIR),
    "second and third word before and two bytes": _pair(state.WORD_2, state.WORD_3, history=0xFFFF),
    "classes of four bytes and the second word before": _pair(state.CLASSES, state.WORD_2, mask=0xFFFF),
    "classes of sixteen bytes": _pair(state.CLASSES),
    "column and length of the word": _pair(state.LINE, state.WORD_LENGTH, mask=0xFF0000),
    "lengths of the word and the line above, column": _pair(state.LINE, state.WORD_LENGTH, mask=0xFF00FF0000),
    "brackets and two bytes": _pair(state.BRACKET, history=0xFFFF, mask=_OPEN),
    "bracket and the word before": _pair(state.BRACKET, state.WORD_1, mask=0xFF),
    "bytes in the bracket and length of the word": _pair(state.BRACKET, state.WORD_LENGTH, mask=0xFFFF),
}
MORE_OTHER = {
    "high halves of six bytes": (state.NONE, 0, state.NONE, 0xF0F0F0F0F0F0),
    "bytes 3 to 6": (state.NONE, 0, state.NONE, 0xFFFFFFFF0000),
    "place in eights": _pair(state.POSITION, mask=7),
    "byte 8 in eights": _pair(state.POSITION, history=0xFF << 56, mask=7),
    "byte 8 in sixteens": _pair(state.POSITION, history=0xFF << 56, mask=15),
    "classes of twelve bytes": TEXT["classes of twelve bytes"],
}
_NOT_MORE_OF_CODE = {"bytes 3 to 6", "byte 8 in sixteens", "classes of twelve bytes"}
MORE_CODE = {name: context for name, context in MORE_OTHER.items() if name not in _NOT_MORE_OF_CODE}
MORE_TABLE = {
    "order 5": _order(5),
    "above and its neighbours": _pair(state.RECORD, mask=0xFFFF00000000FF),
    "above and match": _pair(state.RECORD, state.MATCH, mask=0xFF),
    "classes of twelve bytes": TEXT["classes of twelve bytes"],
}
_NOT_MORE_OF_LINES = {  # the same of MORE_TEXT
    *("bracket and word", "classes of four bytes and the second word before"),
    *("bytes in the bracket and length of the word", "classes of sixteen bytes"),
}
_COPIED = {  # cells that are those of an earlier place
    "earlier cell by form of the line": _pair(state.COPIED + copied.BY_FORM),
    "earlier cell by number": _pair(state.COPIED + copied.BY_PLACE),
}
MORE_LINES = {name: context for name, context in MORE_TEXT.items() if name not in _NOT_MORE_OF_LINES} | _COPIED
_MORE_OF_CELLS = {name: context for name, context in MORE_TABLE.items() if name == "above and its neighbours"}
CONTEXTS = {
    **{"text": TEXT, "lines": LINES, "executable": EXECUTABLE, "code": CODE, "table": TABLE, "cells": CELLS},
    "other": OTHER,
}
MORE = {  # at level 6
    **{"text": MORE_TEXT, "lines": MORE_LINES, "executable": MORE_OTHER, "code": MORE_CODE},
    **{"other": MORE_OTHER, "table": MORE_TABLE, "cells": _MORE_OF_CELLS},
}
_NAMES = {context: name for table in (*CONTEXTS.values(), *MORE.values()) for name, context in table.items()}


def name_of(context: Context) -> str:
    """Return a context's name for `explain`."""
    return _NAMES[context]


_FAST = {
    "text": (
        *("order 1", "order 2", "order 3", "order 4", "order 6", "word", "word and the one before"),
        *("classes of twelve bytes", "outline of the line", "match and byte"),
        *("brackets and byte", "brackets and tag", "column and classes of two bytes"),
    ),
    "lines": (
        *("order 1", "order 3", "order 4", "word", "word and the one before", "classes of twelve bytes"),
        *("line of the same form", "line of the same form and mark", "field above and its number"),
        *(
            "cell, its number and the cell above",
            "cell and key",
            "cell and its number",
            "number by difference",
            "match and byte",
        ),
    ),
    "other": (
        *("order 1", "order 2", "order 3", "order 4", "order 6", "what followed two bytes", "bytes 2 and 3"),
        *("bytes 1 and 3", "byte 4 in fours", "bytes 2 to 4", "match and byte", "two matches"),
        *("two above by stride", "zeros among eight bytes"),
    ),
    "executable": (
        *("order 1", "order 2", "order 3", "order 4", "order 6", "what followed two bytes", "bytes 2 and 3"),
        *("match and byte", "two matches", "instruction", "instruction and the one before"),
        *("instruction and two before", "instruction and three opcodes before", "opcode and two bytes"),
    ),
    "code": (
        *("order 1", "order 2", "order 3", "order 4", "match and byte", "two matches"),
        *("instruction", "instruction and the one before", "instruction and two before"),
        *("instruction and three opcodes before", "opcode and two bytes"),
        *("place in the instruction and byte 4", "place in the instruction, bytes 1 and 4"),
    ),
    "table": (
        *("order 1", "order 2", "order 3", "order 4", "two above and column", "above and column", "two above"),
        *("column and byte", "count, above and its right", "expected by the bytes above, and column"),
        *("match and byte", "order 8", "two matches"),
    ),
}

_LEFT_OUT = {  # contexts of TEXT that level 5 drops: they gain least next to the network
    *_FOLLOWED,
    *("order 4", "order 6", "bracket", "brackets and head of the line"),
}
_LEFT_OUT_OF_TEXT = {  # by level, in text
    5: {*_LEFT_OUT, "order 8", "word and two before"},
    6: {
        *("order 5", "order 8", "what followed two bytes", "what followed three bytes", "word and the second before"),
        *("word and two before", "outline of the line", "match and byte"),
    },
}
_LEFT_OUT_OF_LINES = {  # and in lines
    5: {
        *(*_LEFT_OUT, "field above and agreement", "word and byte", "word and the second before"),
        "outline of the line",
    },
    6: {"what followed three bytes"},
}

_RATES, _RATES_OF_CELLS = (0.002, 0.015, 0.01, 0.002), (0.002, 0.015, 0.01, 0.004)
_SELECTORS = {5: 10, 6: 14}


GROUPS = 3  # byte histories, words, others
_OF_WORDS = {state.WORD, state.WORD_1, state.WORD_2, state.WORD_3, state.PAIR, state.LETTERS, state.WORD_LENGTH}


def group_of(context: Context) -> int:
    """Return the group of a context (0 byte history, 1 words, 2 others), whose mean of inputs it counts for."""
    registers = {context[0], context[2]} - {state.NONE, state.OLDER}
    if not registers:
        return 0
    return 1 if registers <= _OF_WORDS else 2


def preset(level: int, kind: str, bare: bool = False) -> DeepPreset:
    """Return the models of a level from 4 to 6 for a kind of content.

    Args:
        level: 4, 5 or 6.
        kind: "text", "lines", "executable", one of CODES, "table", "cells", which is "table" at level 4, or "other".
        bare: start with untrained weights, without the byte network.
    """
    if level == 4 and kind == "cells":
        kind = "table"
    machine = CODES.get(kind, int(kind == "executable"))
    kind = "code" if machine > 1 else kind
    table, has_lines, start = CONTEXTS[kind], kind == "lines", "" if bare else warm_start(level, kind)
    if level == 4:
        fast = _grouped(table[name] for name in _FAST[kind])
        return DeepPreset(fast, (5, 7, 16), 7, 1 << 21, _RATES, lines=has_lines, warm_start=start, machine=machine)
    of_text = kind in ("text", "lines")
    buckets = 14 << 18  # 672 MiB; all models take less than 1 GiB
    if of_text:
        without = (_LEFT_OUT_OF_LINES if has_lines else _LEFT_OUT_OF_TEXT)[level]
        table = {name: context for name, context in table.items() if name not in without}
    if level == 6:
        table = table | MORE[kind]
        if of_text:
            buckets = 13 << 18  # 624 MiB; all models take less than 1 GiB
    selectors = 7 if level == 5 and of_text else _SELECTORS[level]
    network = not (bare or kind in ("table", "cells", "code") or (level, kind) == (5, "executable"))
    contexts, rates = _grouped(table.values()), _RATES_OF_CELLS if kind == "cells" else _RATES
    return DeepPreset(contexts, (4, 6, 9, 14, 24), selectors, buckets, rates, network, has_lines, start, machine)


def _grouped(contexts: Iterable[Context]) -> tuple[Context, ...]:
    return tuple(sorted(contexts, key=group_of))
