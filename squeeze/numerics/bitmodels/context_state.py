"""The state of contexts for levels with many of them: words, lines, brackets, tags, records, matches.

As in contexts.py, 64-bit registers are updated after every byte. A context is a row of two registers, a mask for the
first, and a mask for the last eight bytes. Nothing here knows what the contexts predict.
"""

import numpy as np

from squeeze.numerics.bitmodels import instructions, risc
from squeeze.numerics.bitmodels.contexts import CLASS, mix_hash
from squeeze.numerics.jit import inline

# Registers that contexts name.
NONE = 0  # always zero
HISTORY = 1  # bytes 1 to 8 back, the latest in the low byte
OLDER = 2  # bytes 9 to 16 back
WORD = 3  # hash of the letters of the present word, lower case; 0 between words
WORD_1, WORD_2, WORD_3 = 4, 5, 6  # the words before it
PAIR = 7  # WORD_1 and WORD_2
LETTERS = 8  # the last eight letters, lower case, whatever stood between them
FOLLOWED = 9  # two bytes that last followed the latest byte, then two of the latest two bytes, then of three
CLASSES = 10  # 4-bit classes of the last 16 bytes
LINE = 11  # bytes above (16 bits: above and to its right), column (8), first byte (8), length of the line before (8)
LINE_HEAD = 12  # hash of the first word of the line
BRACKET = 13  # innermost open bracket (8 bits), bytes since it (8 bits), the bracket outside it (8 bits)
TAG = 14  # hash of the latest markup tag's name
RECORD = 15  # bytes in this column one and two records above (8 bits each), the column (16), three above (8), left and
#   right of the one above (8 each)
POSITION = 16  # bytes since the start of the block
MATCH = 17  # byte that the longest match expects (9 bits), class of its length (4 bits), that of the second (9 bits)
OUTLINE = 18  # characters that are no letters, and one mark for each run of letters
TOP_BYTE = 19  # the network's prediction: byte (8 bits), class of its probability (3 bits)
OPCODES = 20  # first bytes of the last eight x86 instructions
WORD_LENGTH = 21
_LINE_START = 22
_LINE_ABOVE = 23
_STACK_SIZE = 24
_IN_TAG = 25
SKIP = 26  # bytes of an instruction's operand that are still to come
INSTRUCTION = 27  # the instruction that the next byte is part of (instructions.py, risc.py); 0 at its start
INSTRUCTIONS = 28  # 16 bits each of the last four instructions
_PARSER = 29
FIELDS = 30  # the first of the registers of fields.py, for lines
RECORDS = 101  # the first of the registers of records.py
CELLS = 109  # the first of the registers of cells.py
COPIED = 121  # the first of the registers of copied.py, for lines
STRIDES = 195  # the first of the registers of strides.py
REGISTERS = 201

STACK = 16  # open brackets that are remembered


def _bracket_table() -> np.ndarray:
    """Return uint8 [256]: for a closing bracket the opening one, and 1 for an opening one."""
    table = np.zeros(256, np.uint8)
    for opening, closing in ("()", "[]", "{}", "<>"):
        table[ord(opening)] = 1
        table[ord(closing)] = ord(opening)
    return table


_BRACKETS = _bracket_table()


@inline
def update_byte(registers, followed1, followed2, followed3, stack, data, position, record):
    """Update the registers after the byte data[position].

    Args:
        registers: uint64 [REGISTERS].
        followed1: uint16 [256], the last two bytes after each byte.
        followed2: uint16 [65536], the last two bytes after each pair of bytes.
        followed3: uint16 [2^18], the last two bytes after each hashed triple.
        stack: uint8 [STACK], open brackets.
        data: The block.
        position: The position of the byte.
        record: The record length, or 0.
    """
    byte = np.uint64(data[position])
    history = registers[HISTORY]
    one, two = np.int64(history & np.uint64(0xFF)), np.int64(history & np.uint64(0xFFFF))
    three = np.int64(mix_hash(history & np.uint64(0xFFFFFF), np.uint64(3)) >> np.uint64(46))
    followed1[one] = (followed1[one] << np.uint16(8)) | np.uint16(byte)
    followed2[two] = (followed2[two] << np.uint16(8)) | np.uint16(byte)
    followed3[three] = (followed3[three] << np.uint16(8)) | np.uint16(byte)
    registers[OLDER] = (registers[OLDER] << np.uint64(8)) | (history >> np.uint64(56))
    history = (history << np.uint64(8)) | byte
    registers[HISTORY] = history
    one, two = np.int64(byte), np.int64(history & np.uint64(0xFFFF))
    three = np.int64(mix_hash(history & np.uint64(0xFFFFFF), np.uint64(3)) >> np.uint64(46))
    registers[FOLLOWED] = (
        np.uint64(followed1[one])
        | (np.uint64(followed2[two]) << np.uint64(16))
        | (np.uint64(followed3[three]) << np.uint64(32))
    )
    registers[POSITION] = np.uint64(position + 1)
    registers[CLASSES] = (registers[CLASSES] << np.uint64(4)) | CLASS[byte]
    _update_letter(registers, byte)
    _update_line(registers, byte, data, position + 1)
    _update_bracket(registers, stack, byte)
    _update_instruction(registers, byte, history)
    if record > 0:
        _update_record(registers, data, position + 1, record)


@inline
def _update_letter(registers, byte):
    lower = byte
    if np.uint64(65) <= byte <= np.uint64(90):
        lower = byte + np.uint64(32)
    if (np.uint64(97) <= lower <= np.uint64(122)) or lower >= np.uint64(128):
        if registers[WORD] == np.uint64(0):
            registers[OUTLINE] = mix_hash(registers[OUTLINE], np.uint64(97))
        registers[WORD] = mix_hash(registers[WORD], lower)
        registers[WORD_LENGTH] += np.uint64(1)
        registers[LETTERS] = (registers[LETTERS] << np.uint64(8)) | lower
        return
    registers[OUTLINE] = mix_hash(registers[OUTLINE] & np.uint64(0xFFFFFFFF), byte)
    if registers[WORD] != np.uint64(0):
        registers[WORD_3] = registers[WORD_2]
        registers[WORD_2] = registers[WORD_1]
        registers[WORD_1] = registers[WORD]
        registers[PAIR] = mix_hash(registers[WORD_1], registers[WORD_2])
        registers[WORD] = np.uint64(0)
        registers[WORD_LENGTH] = np.uint64(0)
        if registers[LINE_HEAD] == np.uint64(0):
            registers[LINE_HEAD] = registers[WORD_1]
        if registers[_IN_TAG] == np.uint64(1):
            registers[TAG] = registers[WORD_1]
            registers[_IN_TAG] = np.uint64(0)
    if byte == np.uint64(60):
        registers[_IN_TAG] = np.uint64(1)


@inline
def _update_line(registers, byte, data, position):
    if byte == np.uint64(10):
        registers[_LINE_ABOVE] = registers[_LINE_START]
        registers[_LINE_START] = np.uint64(position)
        registers[LINE_HEAD] = np.uint64(0)
        registers[OUTLINE] = np.uint64(0)
    start = np.int64(registers[_LINE_START])
    column = position - start
    first = np.uint64(data[start]) if column > 0 else np.uint64(0)
    over = np.int64(registers[_LINE_ABOVE]) + column
    above = np.uint64(data[over]) if over < start else np.uint64(10)
    beyond = np.uint64(data[over + 1]) if over + 1 < start else np.uint64(10)
    length = start - np.int64(registers[_LINE_ABOVE])
    registers[LINE] = (
        above
        | (beyond << np.uint64(8))
        | (np.uint64(min(column, 255)) << np.uint64(16))
        | (first << np.uint64(24))
        | (np.uint64(min(length, 255)) << np.uint64(32))
    )


@inline
def _update_bracket(registers, stack, byte):
    kind = np.uint64(_BRACKETS[byte])
    size = np.int64(registers[_STACK_SIZE])
    since = (registers[BRACKET] >> np.uint64(8)) & np.uint64(0xFF)
    if kind == np.uint64(1):
        if size == STACK:
            for i in range(STACK - 1):
                stack[i] = stack[i + 1]
            size -= 1
        stack[size] = np.uint8(byte)
        size += 1
        since = np.uint64(0)
    elif kind > np.uint64(1):
        if size > 0 and np.uint64(stack[size - 1]) == kind:
            size -= 1
        since = np.uint64(0)
    else:
        since = min(since + np.uint64(1), np.uint64(255))
    registers[_STACK_SIZE] = np.uint64(size)
    inner = np.uint64(stack[size - 1]) if size > 0 else np.uint64(0)
    outer = np.uint64(stack[size - 2]) if size > 1 else np.uint64(0)
    registers[BRACKET] = inner | (since << np.uint64(8)) | (outer << np.uint64(16))


@inline
def _update_record(registers, data, position, record):
    above = np.uint64(data[position - record]) if position >= record else np.uint64(0)
    above2 = np.uint64(data[position - 2 * record]) if position >= 2 * record else np.uint64(0)
    above3 = np.uint64(data[position - 3 * record]) if position >= 3 * record else np.uint64(0)
    column = np.uint64(position % record)
    left = np.uint64(data[position - record - 1]) if position > record else np.uint64(0)
    right = np.uint64(data[position - record + 1]) if 1 < record <= position else np.uint64(0)
    registers[RECORD] = (
        above
        | (above2 << np.uint64(8))
        | (column << np.uint64(16))
        | (above3 << np.uint64(32))
        | (left << np.uint64(40))
        | (right << np.uint64(48))
    )


@inline
def update_instruction(registers, machine):
    """Update the registers of instructions after the latest byte of code.

    Args:
        registers: uint64 [REGISTERS], after `update_byte`.
        machine: 1 for x86, or another number of risc.py.
    """
    byte = registers[HISTORY] & np.uint64(0xFF)
    if machine == 1:
        _follow_x86(registers, byte)
        return
    present, ended = risc.follow(np.int64(registers[INSTRUCTION]), machine, np.int64(byte))
    if ended >= 0:
        registers[INSTRUCTIONS] = (registers[INSTRUCTIONS] << np.uint64(16)) | np.uint64(ended)
    registers[INSTRUCTION] = np.uint64(present)


@inline
def _follow_x86(registers, byte):
    present = np.int64(registers[INSTRUCTION])
    present, parser = instructions.follow(present, np.int64(registers[_PARSER]), np.int64(byte))
    if present >= instructions.ENDED:
        ended = np.uint64(instructions.summary(present))
        registers[INSTRUCTIONS] = (registers[INSTRUCTIONS] << np.uint64(16)) | ended
        present, parser = np.int64(0), np.int64(0)
    registers[INSTRUCTION] = np.uint64(present)
    registers[_PARSER] = np.uint64(parser)


@inline
def _update_instruction(registers, byte, history):
    """Update a guess at where x86 instructions begin, which skips the four-byte operands of calls and jumps."""
    if registers[SKIP] > np.uint64(0):
        registers[SKIP] -= np.uint64(1)
        return
    before = (history >> np.uint64(8)) & np.uint64(0xFF)
    if (byte & np.uint64(0xFE)) == np.uint64(0xE8) or (
        before == np.uint64(0x0F) and (byte & np.uint64(0xF0)) == np.uint64(0x80)
    ):
        registers[SKIP] = np.uint64(4)
    registers[OPCODES] = (registers[OPCODES] << np.uint64(8)) | byte
