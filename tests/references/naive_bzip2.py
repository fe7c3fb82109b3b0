"""bzip2 streams, closed as docs/format.md says (21.8), slowly."""

from itertools import groupby

_MASK = 0xFFFFFFFF


def close(content: bytes, extra: bytes) -> bytes:
    level, moved = extra[0], _varints(extra[1:])
    bits, checksum = "".join(f"{byte:08b}" for byte in b"BZh%d" % level), 0
    for number, (block, raw) in enumerate(_blocks(content, 100_000 * level - 19)):
        own = _checksum(raw)
        checksum = (checksum << 1 & _MASK | checksum >> 31) ^ own
        bits += _block(block, own, moved[number] if moved else 0)
    bits += f"{0x177245385090:048b}{checksum:032b}"
    bits += "0" * (-len(bits) % 8)
    return bytes(int(bits[at : at + 8], 2) for at in range(0, len(bits), 8))


def _varints(data: bytes) -> list[int]:
    numbers, value, shift = [], 0, 0
    for byte in data:
        value, shift = value | (byte & 127) << shift, shift + 7
        if byte < 128:
            numbers.append(value)
            value = shift = 0
    return numbers


def _blocks(content: bytes, most: int) -> list[tuple[bytes, bytes]]:
    """Return blocks with their runs coded, and the bytes that they stand for."""
    found, coded, raw = [], b"", b""
    for byte, equal in groupby(content):
        left = len(list(equal))
        while left:
            run = min(left, 255)
            coded += bytes([byte]) * min(run, 4) + (bytes([run - 4]) if run >= 4 else b"")
            raw, left = raw + bytes([byte]) * run, left - run
            if len(coded) >= most:
                found.append((coded, raw))
                coded = raw = b""
    return [*found, (coded, raw)] if coded else found


def _checksum(data: bytes) -> int:
    value = _MASK
    for byte in data:
        value ^= byte << 24
        for _ in range(8):
            value = (value << 1 & _MASK) ^ (0x04C11DB7 if value >> 31 else 0)
    return value ^ _MASK


def _block(block: bytes, checksum: int, moved: int) -> str:
    twice = block + block
    order = sorted(range(len(block)), key=lambda start: twice[start : start + len(block)])
    pointer = next(i for i, at in enumerate(order) if twice[at : at + len(block)] == block) + moved
    used = sorted(set(block))
    symbols = _symbols([block[at - 1] for at in order], used)
    alphabet = len(used) + 2
    lengths, chosen = _tables(symbols, alphabet)
    bits = f"{0x314159265359:048b}{checksum:032b}0{pointer:024b}"
    rows = [[byte in used for byte in range(row, row + 16)] for row in range(0, 256, 16)]
    for row in ([any(row) for row in rows], *(row for row in rows if any(row))):
        bits += "".join("1" if bit else "0" for bit in row)
    bits += f"{len(lengths):03b}{len(chosen):015b}"
    latest = list(range(len(lengths)))
    for table in chosen:
        bits += "1" * latest.index(table) + "0"
        latest.insert(0, latest.pop(latest.index(table)))
    for table in lengths:
        before = table[0]
        bits += f"{before:05b}"
        for length in table:
            bits += ("10" if length > before else "11") * abs(length - before) + "0"
            before = length
    codes = [_codes(table) for table in lengths]
    return bits + "".join(codes[chosen[i // 50]][symbol] for i, symbol in enumerate(symbols))


def _symbols(transform: list[int], used: list[int]) -> list[int]:
    latest, symbols, zeros = list(used), list[int](), 0
    for byte in [*transform, -1]:
        place = latest.index(byte) if byte >= 0 else len(used)
        if place == 0:
            zeros += 1
            continue
        while zeros:
            digit = 1 if zeros % 2 else 2
            symbols.append(digit - 1)
            zeros = (zeros - digit) // 2
        symbols.append(place + 1)
        if byte >= 0:
            latest.insert(0, latest.pop(place))
    return symbols


def _tables(symbols: list[int], alphabet: int) -> tuple[list[list[int]], list[int]]:
    tables = 2 + sum(len(symbols) >= bound for bound in (200, 600, 1200, 2400))
    lengths, begin, rest = [[0] * alphabet for _ in range(tables)], 0, len(symbols)
    for part in range(tables, 0, -1):
        end, found = begin - 1, 0
        while found < rest // part and end < alphabet - 1:
            end += 1
            found += symbols.count(end)
        if end > begin and 1 < part < tables and (tables - part) % 2:
            found -= symbols.count(end)
            end -= 1
        lengths[part - 1] = [0 if begin <= symbol <= end else 15 for symbol in range(alphabet)]
        begin, rest = end + 1, rest - found
    chosen = list[int]()
    for _ in range(4):
        groups, counts = (
            [symbols[at : at + 50] for at in range(0, len(symbols), 50)],
            [[0] * alphabet for _ in range(tables)],
        )
        chosen = [min(range(tables), key=lambda t: sum(lengths[t][s] for s in group)) for group in groups]
        for table, group in zip(chosen, groups, strict=True):
            for symbol in group:
                counts[table][symbol] += 1
        lengths = [_code_lengths(count) for count in counts]
    return lengths, chosen


def _code_lengths(counts: list[int]) -> list[int]:
    weights = {symbol: 256 * max(count, 1) for symbol, count in enumerate(counts)}
    while True:
        heap, above, node = [], {}, len(counts)
        weight = dict(weights)

        def rise(heap: list[int], weight: dict[int, int]) -> None:
            place = len(heap) - 1
            while place and weight[heap[place]] < weight[heap[(place - 1) // 2]]:
                heap[place], heap[(place - 1) // 2] = heap[(place - 1) // 2], heap[place]
                place = (place - 1) // 2

        def lightest(heap: list[int], weight: dict[int, int]) -> int:
            root, last, place = heap[0], heap.pop(), 0
            if heap:
                heap[0] = last
                while (below := 2 * place + 1) < len(heap):
                    below += below + 1 < len(heap) and weight[heap[below + 1]] < weight[heap[below]]
                    if weight[last] < weight[heap[below]]:
                        break
                    heap[place], heap[below], place = heap[below], last, below
            return root

        for symbol in range(len(counts)):
            heap.append(symbol)
            rise(heap, weight)
        while len(heap) > 1:
            a, b = lightest(heap, weight), lightest(heap, weight)
            depth = 1 + max(weight[a] % 256, weight[b] % 256)
            weight[node], above[a], above[b] = weight[a] // 256 * 256 + weight[b] // 256 * 256 + depth, node, node
            heap.append(node)
            rise(heap, weight)
            node += 1
        lengths = [_depth(symbol, above) for symbol in range(len(counts))]
        if max(lengths) <= 17:
            return lengths
        weights = {symbol: 256 * (1 + one // 512) for symbol, one in weights.items()}


def _depth(node: int, above: dict[int, int]) -> int:
    depth = 0
    while node in above:
        node, depth = above[node], depth + 1
    return depth


def _codes(lengths: list[int]) -> dict[int, str]:
    code, codes = 0, {}
    for length in range(1, 21):
        for symbol, own in enumerate(lengths):
            if own == length:
                codes[symbol] = f"{code:0{length}b}"
                code += 1
        code <<= 1
    return codes
