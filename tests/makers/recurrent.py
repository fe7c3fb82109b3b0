"""Make small byte networks with random weights, as tensors of a file (squeeze/codecs/recurrent/weights.py)."""

import numpy as np


def tensors(width=32, hidden=48, word_width=48, word_hidden=64, layers=(1, 2, 1), rows=64, seed=1):
    """Return the tensors of a network.

    Args:
        width: width of the blocks over bytes
        hidden: width of their feed-forward networks
        word_width: width of the blocks over words
        word_hidden: width of their feed-forward networks
        layers: number of blocks before, over and after words
        rows: rows of the longer embedding tables
        seed: seed of the weights
    """
    generator, found = np.random.default_rng(seed), {}

    def add(name, outputs, inputs):
        if name.startswith(("grams", "words", "up", "down")):
            found[name] = generator.integers(0, 256, (outputs, inputs // 2)).astype(np.uint8)
            deviation = 8.5
        else:
            found[name] = generator.integers(-127, 128, (outputs, inputs)).astype(np.int8)
            deviation = 73
        found[f"{name}.scale"] = (generator.uniform(0.5, 1, outputs) / deviation / np.sqrt(inputs)).astype(np.float32)

    found["embedding"] = generator.normal(size=(256, width)).astype(np.float32)
    for k in range(3):
        add(f"grams.{k}", rows if k else max(rows // 4, 1), width)
    for stack, blocks, size, inner in zip(
        ("before", "words", "after"), layers, (width, word_width, width), (hidden, word_hidden, hidden), strict=True
    ):
        for block in range(blocks):
            name = f"{stack}.{block}"
            add(f"{name}.into", 3 * size, size)
            add(f"{name}.out", size, size)
            add(f"{name}.gate_up", 2 * inner, size)
            add(f"{name}.down", size, inner)
            found[f"{name}.taps"] = generator.normal(size=(4, size)).astype(np.float32)
            found[f"{name}.keeping"] = np.linspace(-1, 4, size).astype(np.float32)
    add("up", word_width, width)
    add("down", width, word_width)
    add("head", 256, width)
    found["head.scale"] *= 2
    return found
