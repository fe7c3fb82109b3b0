"""Predictions of the speed of 2:4 sparsity compared with dense weights, layer by layer, by the model of
kernels/roofline.py.
"""

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.engine.network import Network
from squeeze.engine.selection import plan
from squeeze.kernels.roofline import WORTH, constants_of, fastest, predict
from squeeze.prune.sparse24 import METHOD

__all__ = ["Advice", "advise"]


@dataclass(frozen=True)
class Advice:
    """A prediction for all matrices of a checkpoint.

    Each layer is its name, its shape, the seconds of the dense product, the seconds of the fastest product, and the
    name of that product. `source` says where the constants of the device come from.
    """

    device: str
    batch: int
    bits: int
    source: str
    layers: tuple[tuple[str, tuple[int, int], float, float, str], ...]

    @property
    def speed(self) -> float:
        """Predicted speed of all layers together, as a multiple of dense weights with the same bits."""
        return sum(layer[2] for layer in self.layers) / max(sum(layer[3] for layer in self.layers), 1e-30)

    @property
    def verdict(self) -> str:
        against = "dense 4-bit weights" if self.bits == 4 else "dense weights"
        if self.speed >= WORTH:
            return f"2:4 is predicted to be {self.speed:.2f} times as fast as {against}."
        return f"2:4 is not faster than {against} here; what it saves is size."

    def as_json(self) -> dict[str, object]:
        keys = ("name", "shape", "dense_seconds", "seconds", "product")
        layers = [dict(zip(keys, layer, strict=True)) for layer in self.layers]
        settings = {"device": self.device, "batch": self.batch, "bits": self.bits, "constants": self.source}
        return {**settings, "speed": self.speed, "verdict": self.verdict, "layers": layers}

    def table(self) -> str:
        """Return the layers as text: one line for all layers of one name and shape."""
        lines = [f"{'layer':<44} {'count':>5} {'shape':>13} {'dense us':>9} {'2:4 us':>9} {'speed':>6}  product"]
        alike = Counter((re.sub(r"\.\d+\.", ".*.", layer[0]), *layer[1:]) for layer in self.layers)
        for (name, shape, dense, sparse, product), count in alike.items():
            size = "x".join(map(str, shape))
            times = f"{1e6 * dense:9.1f} {1e6 * sparse:9.1f} {dense / sparse:6.2f}"
            lines.append(f"{name:<44} {count:5} {size:>13} {times}  {product}")
        return "\n".join([*lines, f"constants: {self.source}", self.verdict])


def advise(folder: Path | str, device: str = "cpu", batch: int = 1, bits: int = 16) -> Advice:
    """Predict the speed of a checkpoint's matrices in 2:4 compared with dense ones.

    Args:
        folder: A checkpoint, pruned or not.
        device: "cpu" or a GPU that kernels/roofline.py knows.
        batch: Tokens in one product.
        bits: Bits of a value, 16 or 4, in both forms.

    Raises:
        SqueezeError: If the device or the checkpoint is unknown.
    """
    constants = constants_of(device)
    width = 4 if device == "cpu" else 2
    layers = []
    for name, (outputs, inputs) in _shapes(Path(folder)).items():
        seconds = predict(constants, outputs, inputs, batch, bits, width)
        chosen = fastest(constants, outputs, inputs, batch, bits)
        layers.append((name, (outputs, inputs), seconds["dense"], seconds[chosen], chosen))
    return Advice(device, batch, bits, constants.source, tuple(layers))


def _shapes(folder: Path) -> dict[str, tuple[int, int]]:
    """Return the shapes of the matrices in a checkpoint's blocks, pruned or not, by name."""
    checkpoint = Checkpoint.open(folder)
    if (checkpoint.config.get("quantization_config") or {}).get("quant_method") == METHOD:
        grids = [name for name in checkpoint.files if name.endswith(".sparse_grid")]
        stored_grids = checkpoint.load(grids, strict=False)
        return {name.removesuffix(".sparse_grid"): (int(g[0]), int(g[1])) for name, g in stored_grids.items()}
    network = Network(checkpoint)
    shapes = {}
    for block in network.blocks:
        for leaf in plan(network, block)[0]:
            rows, columns = network.module(f"{block}.{leaf}").weight.shape  # type: ignore[union-attr, misc]
            shapes[network.stored_name(f"{block}.{leaf}")] = (int(rows), int(columns))
    return shapes
