"""Huffman codes of deflate streams, and zlib's lengths for them, written from docs/format.md, section 21.6."""

ORDER = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15]


def repeat(lengths: list[int], place: int, before: int) -> tuple[int, int, int]:
    """Return the symbol that zlib writes next, its extra bits, and the lengths that it stands for."""
    value, run = lengths[place], 1
    while place + run < len(lengths) and lengths[place + run] == value:
        run += 1
    if run < 3 or (value and value != before):
        return value, 0, 1
    if value:
        return 16, min(run, 6) - 3, min(run, 6)
    return (17, run - 3, run) if run <= 10 else (18, min(run, 138) - 11, min(run, 138))


def last(lengths: list[int]) -> int:
    return max((k + 1 for k, length in enumerate(lengths) if length), default=0)


def used(head: list[int]) -> int:
    return max(4, last([head[symbol] for symbol in ORDER]))


def canonical(lengths: list[int]) -> dict[int, tuple[int, int]]:
    """Return the bits of each symbol, the first bit lowest, and their number."""
    table, code = {}, 0
    for size in range(1, 16):
        for symbol, length in enumerate(lengths):
            if length == size:
                table[symbol] = (int(f"{code:0{size}b}"[::-1], 2), size)
                code += 1
        code *= 2
    return table


def zlib_lengths(counts: list[int], limit: int) -> list[int]:
    """Return the code lengths of zlib's trees.c, with its heap."""
    size = len(counts)
    count, depth = [*counts, *[0] * size], [0] * (2 * size)
    heap = [k for k in range(size) if counts[k]]
    last = heap[-1] if heap else -1
    while len(heap) < 2:
        last, node = (last + 1, last + 1) if last < 2 else (last, 0)
        heap.append(node)
        count[node] = 1

    def sift(k: int) -> None:
        node = heap[k]
        while (son := 2 * k + 1) < len(heap):
            if son + 1 < len(heap) and smaller(heap[son + 1], heap[son]):
                son += 1
            if smaller(node, heap[son]):
                break
            heap[k], k = heap[son], son
        heap[k] = node

    def smaller(a: int, b: int) -> bool:
        return (count[a], depth[a]) <= (count[b], depth[b]) if count[a] == count[b] else count[a] < count[b]

    for k in range(len(heap) // 2 - 1, -1, -1):
        sift(k)
    order, parents, node = list[int](), dict[int, int](), size
    while len(heap) >= 2:
        a, heap[0] = heap[0], heap[-1]
        heap.pop()
        sift(0)
        b = heap[0]
        order += [a, b]
        count[node], depth[node] = count[a] + count[b], max(depth[a], depth[b]) + 1
        parents[a] = parents[b] = node
        heap[0] = node
        sift(0)
        node += 1
    lengths, used, overflow = {heap[0]: 0}, [0] * (limit + 2), 0
    for one in reversed(order):
        lengths[one] = lengths[parents[one]] + 1
        if lengths[one] > limit:
            lengths[one] = limit
            overflow += 1
        if one < size:
            used[lengths[one]] += 1
    if overflow:
        while overflow > 0:
            length = max(k for k in range(limit) if used[k])
            used[length] -= 1
            used[length + 1] += 2
            used[limit] -= 1
            overflow -= 2
        leaves = iter(one for one in order if one < size)
        for length in range(limit, 0, -1):
            for _ in range(used[length]):
                lengths[next(leaves)] = length
    return [lengths.get(k, 0) for k in range(size)]
