"""Trees of wrappers that are found, written, read and closed again."""

import numpy as np

from squeeze.codecs.parse import tree
from squeeze.codecs.parse.finding import parse
from squeeze.codecs.parse.tree import Child, Node


def parsed(data: bytes, pays: bool = True) -> Node:
    """Return the tree of data with every wrapper opened, or if none pays those that are certain."""
    return parse(np.frombuffer(data, np.uint8), lambda data, found: pays)


def written(root: Node) -> tuple[bytes, np.ndarray]:
    """Return what is written of a tree, and the nodes' own bytes."""
    return tree.to_bytes(root), np.concatenate([node.own for node in root.nodes()])


def closed(root: Node, size: int) -> bytes:
    """Return the data of a tree by what is written of it."""
    return tree.close(tree.read(*written(root)), size).tobytes()


def opened(data: bytes, pays: bool = True) -> Node:
    """Return the tree of data, which comes back as it was."""
    root = parsed(data, pays)
    assert closed(root, len(data)) == data
    return root


def wrappers(data: bytes, *kinds: int) -> list[Child]:
    """Return the wrappers of some kinds in data, which comes back as it was."""
    return [child for node in opened(data).nodes() for child in node.children if child.kind in kinds]
