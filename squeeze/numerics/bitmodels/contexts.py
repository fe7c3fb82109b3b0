"""Contexts of a byte: hashes of what is known before it.

A few 64-bit registers are updated after every byte. A context is a row of three numbers: a register, a mask for it, and
a mask for the register HISTORY (the last eight bytes, latest lowest). Its hash is over the two masked values. So an
order-3 context is the mask 0xFFFFFF and no register, and sparse, word and column contexts are rows of the same table.
"""

import numpy as np

from squeeze.numerics.jit import inline

# Registers.
HISTORY = 0  # bytes 1 to 8 back, the latest in the low byte
OLDER = 1  # bytes 9 to 16 back
WORD = 2  # hash of the letters of the present word, lower case; 0 between words
WORD_PAIR = 3  # WORD and the word before it
WORD_SKIP = 4  # WORD and the word before the one before it
FOLLOWED = 5  # the two bytes that last followed the latest byte, and above them those that followed the latest two
RECORD = 6  # bytes in this column one and two records above (8 bits each), then the column (16 bits)
POSITION = 7  # bytes since the start of the block
CLASSES = 8  # 4-bit classes of the last 16 bytes
LINE = 9  # byte above in text lines (8 bits), column (8 bits), first byte of the line (8 bits)
_PREVIOUS_WORD = 10
_WORD_BEFORE = 11
_LINE_START = 12
_LINE_ABOVE = 13
PHASE = 14  # if tokens are coded: bytes since the token began (8 bits), above them whether there are any
TOKEN_1, TOKEN_2, TOKEN_3 = 15, 16, 17  # hash of that many tokens before this one, and of its bytes so far
_SPELLED = 18
_TOKENS_1, _TOKENS_2, _TOKENS_3 = 19, 20, 21
FIELDS = 22  # the first of the registers of fields.py, for lines
RECORDS = 93  # the first of the registers of records.py
REGISTERS = 101

_MULTIPLY = np.uint64(0x9E3779B97F4A7C15)
_SPREAD = np.uint64(0xD6E8FEB86659FD93)


def _class_table() -> np.ndarray:
    """Return uint64 [256]: the 4-bit class of a byte, such as letters, digits, blanks, brackets or control codes."""
    table = np.full(256, 12, np.uint64)
    table[:32] = 1
    table[0], table[9], table[10], table[13], table[32] = 0, 2, 3, 3, 2
    for marks, number in (("0123456789", 4), ("([{<", 5), (")]}>", 6), ("\"'`", 7), (".,;:!?", 8), ("=+-*/&|^%", 9)):
        for mark in marks:
            table[ord(mark)] = number
    table[ord("A") : ord("Z") + 1] = 10
    table[ord("a") : ord("z") + 1] = 11
    table[128:192] = 13
    table[192:255] = 14
    table[255] = 15
    return table


CLASS = _class_table()


@inline
def mix_hash(a, b):
    """Return a 64-bit hash of two integers."""
    h = (np.uint64(a) + np.uint64(b) * _SPREAD + np.uint64(0x51ED27)) * _MULTIPLY
    return h ^ (h >> np.uint64(29))


@inline
def context_hash(registers, register, register_mask, history_mask, salt):
    """Return the hash of a context from a masked register and the masked history."""
    h = mix_hash(registers[HISTORY] & history_mask, salt)
    return mix_hash(registers[register] & register_mask, h)


@inline
def update_byte(registers, followed1, followed2, data, position, record):
    """Update the registers after the byte data[position].

    Args:
        registers: uint64 [REGISTERS].
        followed1: uint16 [256], the last two bytes after each byte.
        followed2: uint16 [65536], the last two bytes after each pair of bytes.
        data: The block.
        position: The position of the byte.
        record: The record length, 0 to update LINE, or -1 if no context has it.
    """
    byte = np.uint64(data[position])
    history = registers[HISTORY]
    one, two = np.int64(history & np.uint64(0xFF)), np.int64(history & np.uint64(0xFFFF))
    followed1[one] = (followed1[one] << np.uint16(8)) | np.uint16(byte)
    followed2[two] = (followed2[two] << np.uint16(8)) | np.uint16(byte)
    registers[OLDER] = (registers[OLDER] << np.uint64(8)) | (history >> np.uint64(56))
    history = (history << np.uint64(8)) | byte
    registers[HISTORY] = history
    one, two = np.int64(byte), np.int64(history & np.uint64(0xFFFF))
    registers[FOLLOWED] = np.uint64(followed1[one]) | (np.uint64(followed2[two]) << np.uint64(16))
    registers[POSITION] = np.uint64(position + 1)
    registers[CLASSES] = (registers[CLASSES] << np.uint64(4)) | CLASS[byte]
    _update_letter(registers, byte)
    if record > 0:
        _update_record(registers, data, position + 1, record)
    elif record == 0:
        _update_line(registers, byte, data, position + 1)


@inline
def _update_letter(registers, byte):
    lower = byte
    if np.uint64(65) <= byte <= np.uint64(90):
        lower = byte + np.uint64(32)
    if (np.uint64(97) <= lower <= np.uint64(122)) or lower >= np.uint64(128):
        registers[WORD] = mix_hash(registers[WORD], lower)
    elif registers[WORD] != np.uint64(0):
        registers[_WORD_BEFORE] = registers[_PREVIOUS_WORD]
        registers[_PREVIOUS_WORD] = registers[WORD]
        registers[WORD] = np.uint64(0)
    registers[WORD_PAIR] = mix_hash(registers[WORD], registers[_PREVIOUS_WORD])
    registers[WORD_SKIP] = mix_hash(registers[WORD], registers[_WORD_BEFORE])


@inline
def _update_record(registers, data, position, record):
    above = np.uint64(data[position - record]) if position >= record else np.uint64(0)
    above2 = np.uint64(data[position - 2 * record]) if position >= 2 * record else np.uint64(0)
    column = np.uint64(position % record)
    registers[RECORD] = above | (above2 << np.uint64(8)) | (column << np.uint64(16))


@inline
def _update_line(registers, byte, data, position):
    if byte == np.uint64(10):
        registers[_LINE_ABOVE] = registers[_LINE_START]
        registers[_LINE_START] = np.uint64(position)
    start = np.int64(registers[_LINE_START])
    column = position - start
    first = np.uint64(data[start]) if column > 0 else np.uint64(0)
    over = np.int64(registers[_LINE_ABOVE]) + column
    above = np.uint64(data[over]) if over < start else np.uint64(10)
    registers[LINE] = above | (np.uint64(min(column, 255)) << np.uint64(8)) | (first << np.uint64(16))


@inline
def update_token_byte(registers, byte):
    """Update the registers of the current token after one of its bytes."""
    depth = (registers[PHASE] & np.uint64(0xFF)) + np.uint64(1)
    registers[PHASE] = min(depth, np.uint64(0xFF)) | np.uint64(0x100)
    registers[_SPELLED] = mix_hash(registers[_SPELLED], byte)
    _renew_tokens(registers)


@inline
def update_token(registers, token):
    """Start a new token after `token`."""
    registers[_TOKENS_3] = mix_hash(registers[_TOKENS_2], token)
    registers[_TOKENS_2] = mix_hash(registers[_TOKENS_1], token)
    registers[_TOKENS_1] = mix_hash(np.uint64(token), np.uint64(1))
    registers[PHASE] = np.uint64(0)
    registers[_SPELLED] = np.uint64(0)
    _renew_tokens(registers)


@inline
def _renew_tokens(registers):
    for k in range(3):
        registers[TOKEN_1 + k] = mix_hash(registers[_TOKENS_1 + k], registers[_SPELLED])
