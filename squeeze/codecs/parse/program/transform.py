"""The content of a program from its image, and back: parts are transformed in place, and derived bytes are left out.

A part is restored from the content alone, and relocations and derived parts from the others after these.
"""

import numpy as np

from squeeze.codecs.parse.program import code, fixed, frames, headers, places, tables
from squeeze.codecs.parse.program.plan import (
    ARM64,
    BEGINS,
    COMMONS,
    FRAME_INDEX,
    FRAMES,
    HASH,
    HEADERS,
    KEPT,
    PLACES,
    RELOCATIONS,
    RISCV,
    ROWS,
    SYMBOLS,
    WORDS,
    X86,
    X86_64,
    Part,
    Plan,
    impossible,
)
from squeeze.codecs.parse.program.riscv import riscv

__all__ = ["derived", "hide", "show"]

_AFTER_OTHERS = (RELOCATIONS, FRAME_INDEX, HASH, SYMBOLS, PLACES, BEGINS)  # kinds of parts that need others


def hide(image: np.ndarray, plan: Plan) -> np.ndarray:
    """Return the content of an image, uint8."""
    content, known, segments = image.copy(), image.copy(), plan.table()
    for part in plan.parts:
        if part.kind in _AFTER_OTHERS:
            known[part.start : part.end] = 0
    for part in plan.parts:
        _in_place(content[part.start : part.end], part, plan, True)
        _by_others(content[part.start : part.end], part, known, segments, True)
    pieces, done = list[np.ndarray](), 0
    for part in plan.parts:
        if part.removed:
            pieces.append(content[done : part.end - part.removed])
            done = part.end
    return np.concatenate([*pieces, content[done:]]) if pieces else content


def show(content: np.ndarray, plan: Plan) -> np.ndarray:
    """Return the image of a content, uint8.

    Raises:
        DamagedError: if a derived part is impossible.
    """
    image, done, taken = np.zeros(content.size + plan.removed, np.uint8), 0, 0
    for part in plan.parts:
        size = part.end - part.removed - done
        image[done : done + size] = content[taken : taken + size]
        done, taken = part.end, taken + size
    image[done:] = content[taken:]
    for part in plan.parts:
        _in_place(image[part.start : part.end], part, plan, False)
    waiting = {part: image[part.start : part.end].copy() for part in plan.parts if part.kind in _AFTER_OTHERS}
    for part in waiting:
        image[part.start : part.end] = 0
    known, segments = image.copy() if waiting else image, plan.table()
    for part, piece in waiting.items():
        _by_others(piece, part, known, segments, False)
        image[part.start : part.end] = piece
    for part in waiting:
        if part.kind in KEPT:
            rest = derived(image, part, plan)
            if rest is None:
                raise impossible()
            image[part.start + KEPT[part.kind] : part.end] = rest
    return image


def _by_others(piece: np.ndarray, part: Part, known: np.ndarray, segments: np.ndarray, forward: bool) -> None:
    """Transform relocations or symbols, or undo it, by the parts of the image that depend on no other."""
    if part.kind == RELOCATIONS:
        tables.relocations(piece, known, segments, forward)
    elif part.kind in _AFTER_OTHERS and part.kind not in KEPT:
        form, start, size = part.numbers
        other = known[start : start + size]
        if part.kind != SYMBOLS:
            expected = places.in_code(other) if part.kind == PLACES else places.in_frames(other)
            places.places(piece, form >> 1, expected, forward)
            return
        headers.names(piece, other, form >> 1, bool(form & 1), forward)


def derived(image: np.ndarray, part: Part, plan: Plan) -> np.ndarray | None:
    """Return the derived bytes of a part, uint8, from an image with the others; None if they are impossible."""
    if part.kind == FRAME_INDEX:
        start, size = part.numbers
        found = frames.index(image[start : start + size], plan.address(start), plan.address(part.start))
        return np.frombuffer(found, np.uint8) if len(found) == part.removed else None
    is_wide, start, size, other, length = part.numbers
    header = image[part.start : part.start + KEPT[HASH]].tobytes()
    return tables.gnu_hash(header, part.size, image[start : start + size], image[other : other + length], bool(is_wide))


def _in_place(piece: np.ndarray, part: Part, plan: Plan, forward: bool) -> None:
    """Transform a part that depends on no other, or undo it."""
    address = plan.address(part.start)
    if part.kind in (X86, X86_64):
        code.x86(piece, address, part.kind == X86_64, forward)
    elif part.kind == ARM64:
        code.arm64(piece, address, forward)
    elif part.kind == RISCV:
        riscv(piece, address, forward)
    elif part.kind == WORDS:
        fixed.words(piece, address, part.numbers[0], forward)
    elif part.kind == ROWS:
        headers.rows(piece, part.numbers[0] >> 1, bool(part.numbers[0] & 1), forward)
    elif part.kind == HEADERS:
        headers.headers(piece, part.numbers[0] >> 1, bool(part.numbers[0] & 1), forward)
    elif part.kind in (FRAMES, COMMONS):
        (frames.hide if forward else frames.show)(piece, address, part.kind == FRAMES)
