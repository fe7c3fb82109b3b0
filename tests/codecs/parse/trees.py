"""Trees of wrappers that are written, read and closed again."""

import numpy as np

from squeeze.codecs.parse import tree
from squeeze.codecs.parse.tree import Child


def wrappers(data: bytes, *kinds: int) -> list[Child]:
    """Return the wrappers of some kinds in data, which comes back as it was."""
    root = tree.parse(np.frombuffer(data, np.uint8), lambda data, found: True)
    written, own = tree.to_bytes(root), np.concatenate([node.own for node in root.nodes()])
    assert tree.close(tree.read(written, own), len(data)).tobytes() == data
    return [child for node in root.nodes() for child in node.children if child.kind in kinds]
