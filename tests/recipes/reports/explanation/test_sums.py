"""Sections of programs and tensors of checkpoints: names, places, and sums; what is damaged has none."""

import struct

import numpy as np
import pytest
from safetensors.numpy import save

import squeeze
from squeeze.recipes.reports.explanation.sums import Section, by_section, sections_of

NAMES = b"\0.text\0.bss\0.names\0"


def elf(bits: int, order: str) -> bytes:
    """Return an ELF file with .text of 400 bytes, the names and a table of sections; .bss takes no bytes."""
    word, start = ("Q", 64) if bits == 64 else ("I", 52)
    code = bytes(range(200)) * 2
    table = start + len(code) + len(NAMES)
    rows = [(0, 0, 0, 0), (1, 1, start, 400), (7, 8, start, 999), (12, 3, start + 400, len(NAMES))]
    packed = [struct.pack(f"{order}II{3 * word}{word}", name, kind, 0, 0, at, size) for name, kind, at, size in rows]
    ident = b"\x7fELF" + bytes([bits // 32, 1 if order == "<" else 2]) + bytes(10)
    fields = (2, 62, 1, 0, 0, table, 0, 0, 0, 0, len(packed[0]), 4, 3)
    header = ident + struct.pack(f"{order}HHI{3 * word}IHHHHHH", *fields)
    assert len(header) == start
    return header + code + NAMES + b"".join(packed)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("bits", [32, 64])
def test_sections_of_programs(bits, order):
    data = elf(bits, order)
    start = 64 if bits == 64 else 52
    text, names = Section(".text", start, start + 400), Section(".names", start + 400, start + 400 + len(NAMES))
    assert sections_of(data) == (text, names)
    for cut in range(4, len(data), 3):
        sections_of(data[:cut])
    assert sections_of(data[: len(data) // 2]) == ()
    assert sections_of(b"\x7fELF" + b"\xff" * 90) == ()


def test_tensors_of_checkpoints_and_their_sums():
    rng = np.random.default_rng(1)
    data = save({"a.weight": rng.normal(size=400).astype(np.float32), "b.bias": np.zeros(300, np.float32)})
    explanation = squeeze.explain(data, 1)
    found = explanation.by_section
    assert list(found) == ["a.weight", "b.bias", "header and gaps"]
    assert [found[name].size for name in found] == [1_600, 1_200, len(data) - 2_800]
    assert sum(total.bits for total in found.values()) == pytest.approx(explanation.bits)
    assert found["b.bias"].bits_per_byte < 1 < found["a.weight"].bits_per_byte
    assert explanation.as_json()["sections"]["a.weight"]["bytes"] == 1_600
    assert "b.bias" in explanation.table() and "a.weight" in explanation.to_html()
    part = squeeze.explain(data, 1, span=(len(data) - 100, len(data))).by_section
    assert part["b.bias" if "b.bias" in part else "a.weight"].size == 100 and len(part) == 1


def test_sections_of_one_name_are_summed():
    found = by_section([Section("x", 10, 12), Section("x", 14, 15)], np.ones(10), 8)
    assert {name: tuple(total) for name, total in found.items()} == {"x": (3, 3.0), "header and gaps": (7, 7.0)}
    assert by_section([], np.ones(10), 0) == {}
