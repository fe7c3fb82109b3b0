"""Codes of a few bits in 32-bit words: the one layout that all formats share.

A row is a stream of bits, the first code in the lowest ones; words are little-endian and codes straddle them
where their bits do not divide 32 (3 bits: 32 codes in 3 words). Each row starts with a word of its own.
"""

import torch

__all__ = ["pack", "unpack", "words_for"]


def words_for(count: int, bits: int) -> int:
    """Words that `count` codes take."""
    return -(-count * bits // 32)


def pack(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """uint8 [R, N], each below 2^bits -> int32 [R, words_for(N, bits)], zero padded."""
    rows, count = codes.shape
    blocks = -(-count // 32)
    padded = torch.nn.functional.pad(codes, (0, blocks * 32 - count)).view(rows, blocks, 32)
    words = torch.zeros((rows, blocks, bits), dtype=torch.int32, device=codes.device)
    for i in range(32):
        word, shift = divmod(i * bits, 32)
        field = padded[:, :, i].to(torch.int32)
        words[:, :, word] |= field << shift  # what does not fit falls off
        if shift + bits > 32:
            words[:, :, word + 1] |= field >> (32 - shift)
    return words.view(rows, blocks * bits)[:, : words_for(count, bits)].contiguous()


def unpack(words: torch.Tensor, bits: int, count: int) -> torch.Tensor:
    """int32 [R, words_for(count, bits)] -> uint8 [R, count]."""
    rows, blocks = words.shape[0], -(-count // 32)
    padded = torch.nn.functional.pad(words, (0, blocks * bits - words.shape[1])).view(rows, blocks, bits)
    codes = torch.empty((rows, blocks, 32), dtype=torch.uint8, device=words.device)
    for i in range(32):
        word, shift = divmod(i * bits, 32)
        field = padded[:, :, word] >> shift
        if shift + bits > 32:  # the sign of `field` fills the bits from 32 - shift on
            field = field & ((1 << (32 - shift)) - 1) | padded[:, :, word + 1] << (32 - shift)
        codes[:, :, i] = field & ((1 << bits) - 1)
    return codes.view(rows, blocks * 32)[:, :count].contiguous()
