"""Tables of a block have complete codes of at most 17 bits, and each group of symbols has one of them."""

import numpy as np
import pytest

from squeeze.codecs.parse.bzip2.huffman import GROUP, MOST_SYMBOLS, MOST_TABLES, choose_tables, tables_of


@pytest.mark.parametrize(
    ("count", "tables"), [(1, 2), (199, 2), (200, 3), (599, 3), (600, 4), (1200, 5), (2399, 5), (2400, 6)]
)
def test_longer_blocks_have_more_tables(count, tables):
    assert tables_of(count) == tables


def chosen(symbols: np.ndarray, alphabet: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the lengths of all codes, int64 [tables, alphabet], and the tables of groups."""
    tables, lengths = tables_of(symbols.size), np.zeros((MOST_TABLES, MOST_SYMBOLS), np.int64)
    totals = np.bincount(symbols, minlength=MOST_SYMBOLS).astype(np.int64)
    selectors = np.full(-(-symbols.size // GROUP), 99, np.uint8)
    room = np.zeros_like(lengths), np.zeros((3, 2 * MOST_SYMBOLS + 2), np.int64)
    choose_tables(symbols.astype(np.uint16), alphabet, tables, totals, lengths, selectors, *room)
    assert selectors.max() < tables
    return lengths[:tables, :alphabet], selectors


def test_codes_are_complete_and_not_too_long():
    counts = [1, 1]
    while len(counts) < 22:
        counts.append(counts[-1] + counts[-2])  # whose shortest codes have 21 bits
    lengths, _ = chosen(np.repeat(np.arange(22), counts), 22)
    assert lengths.min() >= 1 and lengths.max() <= 17
    assert (2.0**-lengths).sum(1).tolist() == [1.0] * len(lengths)


def test_groups_of_other_symbols_have_other_tables():
    chance = np.random.default_rng(0)
    low, high = chance.integers(0, 8, 10 * GROUP), chance.integers(100, 108, 10 * GROUP)
    lengths, selectors = chosen(np.concatenate([low, high]), 120)
    assert not set(selectors[:10]) & set(selectors[10:])
    assert lengths[selectors[0], :8].max() < lengths[selectors[0], 100:108].min()
