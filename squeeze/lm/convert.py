"""Conversion of a source's floats to int8 weights and their identity.

All arithmetic is elementwise IEEE float32 and the maximum of a row, so a source gives the same integers on every
machine.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from squeeze.errors import ModelError
from squeeze.lm import sources, vocabulary
from squeeze.lm.rotated import rotated
from squeeze.lm.sources import Source, Tensor
from squeeze.lm.weights import IDENTITY_TAG, Layer, Matrix, Weights
from squeeze.numerics import exact, int8
from squeeze.numerics.int8 import LONGEST
from squeeze.numerics.jit import kernel
from squeeze.system import machine

_CHUNK = 1 << 19  # elements that are float32 at once
_THREADS = 4  # more would wait for memory
_Quantised = tuple[np.ndarray, np.ndarray]
_BLOCK = 512  # largest block of rows that a rotation mixes
_TOP = np.float32(int8.TOP)
_SMALLEST = np.float32(2.0**-100)  # a row of smaller numbers counts as zeros


def convert(source: Source) -> Weights:
    """Quantise a model.

    Raises:
        ModelError: if a tensor is missing, has the wrong shape, or numbers that are not finite.
    """
    sources.check_complete(source)
    if max(source.config.width, source.config.feed_forward, source.config.heads * source.config.head_size) > LONGEST:
        raise ModelError(f"{source.name}: a layer has more than {LONGEST:,} inputs, whose products overflow 32 bits")
    with ThreadPoolExecutor(min(machine.available_cores(), _THREADS)) as pool:
        return _Converter(rotated(source), pool).weights()


@kernel
def round_rows(rows: np.ndarray, values: np.ndarray, scales: np.ndarray) -> bool:
    """Round float32 rows [N, K] to int8 and scales float32 [N], and return whether all numbers are finite."""
    for n in range(rows.shape[0]):
        row, out = rows[n], values[n]
        top = exact.magnitude(row)
        if not top < np.inf:  # NaN is larger, too
            return False
        scale = np.float32(1) if top < _SMALLEST else top / _TOP
        for k in range(row.size):
            out[k] = np.int8(exact.to_integer(row[k] / scale))
        scales[n] = scale
    return True


class _Converter:
    """Quantises one tensor after the other, a layer ahead in threads, and hashes each for the identity."""

    def __init__(self, source: Source, pool: ThreadPoolExecutor) -> None:
        self.source, self.config, self.pool = source, source.config, pool
        self.digest = hashlib.sha256(IDENTITY_TAG)
        self.begun: dict[str, Future[_Quantised]] = {}
        self.outer = dict.fromkeys(("embedding", "head"), (self.config.vocabulary, self.config.width))

    def weights(self) -> Weights:
        config, name = self.config, self.source.name
        self.begin({"embedding": self.outer["embedding"]} | self.shapes(0))
        description = json.loads(self.source.tokenizer)
        vocabulary.check(name, description)
        tokens, leaves = vocabulary.spell(description, config.vocabulary)
        if not len(leaves):
            raise ModelError(f"{name}: the model has no tokens that spell text")
        self.digest.update(json.dumps(config.to_json(), sort_keys=True, separators=(",", ":")).encode() + b"\n")
        for token in tokens:
            self.digest.update(len(token).to_bytes(4, "little") + token)
        self.digest.update(leaves.astype("<i4").data)
        embedding, scales = self.quantised("embedding", self.outer["embedding"])
        self.hash(embedding, scales)
        layers = tuple(self.layer(i) for i in range(config.layers))
        for optional in ("qkv_bias", "query_norm", "key_norm", "output_bias"):
            present = [getattr(layer, optional) is not None for layer in layers]
            if len(set(present)) == 2:
                raise self.missing(f"{present.index(False)}.{optional}")
        tied = "head" not in self.source.tensors
        values, head_scales = (embedding, scales) if tied else self.quantised("head", self.outer["head"])
        head = self.matrix(values[leaves], head_scales[leaves])
        if unused := set(self.source.tensors) - {"embedding", "head"} - set(self.known_tensors()):
            raise ModelError(f"{name}: the model has a tensor '{min(unused)}' that its description does not explain")
        return Weights(
            config, layers, embedding, scales, head, leaves, tokens,
            name, self.digest.hexdigest(), self.source.tokenizer,
        )  # fmt: skip

    def known_tensors(self) -> Iterator[str]:
        for i in range(self.config.layers):
            yield from (f"{i}.{part}" for part in sources.LAYER_PARTS)

    def shapes(self, i: int) -> dict[str, tuple[int, int]]:
        """Return the shapes of a layer's matrices by name, or of the head after the last layer."""
        config = self.config
        if i == config.layers:
            return {"head": self.outer["head"]} if "head" in self.source.tensors else {}
        queries, keys = config.heads * config.head_size, config.kv_heads * config.head_size
        own = {
            **{"query": (queries, config.width), "key": (keys, config.width), "value": (keys, config.width)},
            **{"output": (config.width, queries), "down": (config.width, config.feed_forward)},
            **dict.fromkeys(("gate", "up"), (config.feed_forward, config.width)),
        }
        return {f"{i}.{part}": shape for part, shape in own.items()}

    def layer(self, i: int) -> Layer:
        self.begin(self.shapes(i + 1))
        config, own = self.config, self.shapes(i)
        queries, keys = config.heads * config.head_size, config.kv_heads * config.head_size
        query, key, value, output, down, gate, up = ((name, own[name]) for name in own)
        projections = [
            self.rotated(*self.quantised(*query), heads=config.heads),
            self.rotated(*self.quantised(*key), heads=config.kv_heads),
            self.quantised(*value),
        ]
        return Layer(
            qkv=self.stacked(projections),
            qkv_bias=self.qkv_bias(i, queries, keys),
            query_norm=self.vector(f"{i}.query_norm", config.head_size),
            key_norm=self.vector(f"{i}.key_norm", config.head_size),
            output=self.matrix(*self.quantised(*output)),
            output_bias=self.vector(f"{i}.output_bias", config.width),
            gate_up=self.stacked(self.quantised(*part) for part in (gate, up)),
            down=self.matrix(*self.quantised(*down)),
        )

    def qkv_bias(self, i: int, queries: int, keys: int) -> np.ndarray | None:
        sizes = {"query_bias": queries, "key_bias": keys, "value_bias": keys}
        projections = [self.floats(f"{i}.{part}", size) for part, size in sizes.items()]
        query, key, value = projections
        if query is None and key is None and value is None:
            self.hash(None)
            return None
        if query is None or key is None or value is None:
            raise self.missing(f"{i}.query_bias, {i}.key_bias or {i}.value_bias")
        (query,), (key,) = self.rotated(query, heads=self.config.heads), self.rotated(key, heads=self.config.kv_heads)
        bias = np.concatenate([query, key, value])
        self.hash(bias)
        return bias

    def rotated(self, *arrays: np.ndarray, heads: int) -> tuple[np.ndarray, ...]:
        """Return rows of each head in the order in which rotary pairs are half a head apart."""
        if not self.source.interleaved:
            return arrays
        rows = np.arange(heads * self.config.head_size).reshape(heads, self.config.head_size // 2, 2)
        order = rows.swapaxes(1, 2).reshape(-1)
        return tuple(array[order] for array in arrays)

    def begin(self, shapes: Mapping[str, tuple[int, int]]) -> None:
        """Quantise matrices in other threads; errors are those of `quantised`."""
        self.begun |= {name: self.pool.submit(self.quantise, name, shape) for name, shape in shapes.items()}

    def quantised(self, name: str, shape: tuple[int, int]) -> _Quantised:
        """Return int8 [N, K] and scales float32 [N]: the largest number of a row becomes ±127."""
        begun = self.begun.pop(name, None)
        return begun.result() if begun else self.quantise(name, shape)

    def quantise(self, name: str, shape: tuple[int, int]) -> _Quantised:
        tensor = self.tensor(name, shape)
        values, scales = np.empty(shape, np.int8), np.empty(shape[0], np.float32)
        step = max(_BLOCK, _CHUNK // shape[1] // _BLOCK * _BLOCK)
        for start in range(0, shape[0], step):
            rows = tensor.rows(start, min(start + step, shape[0]))
            if rows.shape != (min(step, shape[0] - start), shape[1]):
                raise ModelError(f"{self.source.name}: the model is damaged: tensor {name} is cut off")
            part = slice(start, start + len(rows))
            if not round_rows(np.require(rows, np.float32, ["C", "W"]), values[part], scales[part]):
                raise ModelError(f"{self.source.name}: the model is damaged: tensor {name} is not all finite numbers")
        return values, scales

    def matrix(self, values: np.ndarray, scales: np.ndarray) -> Matrix:
        self.hash(values, scales)
        return Matrix(int8.pack(values), scales, *values.shape)

    def stacked(self, parts: Iterable[tuple[np.ndarray, ...]]) -> Matrix:
        values, scales = (np.concatenate(same) for same in zip(*parts, strict=True))
        return self.matrix(values, scales)

    def vector(self, name: str, size: int) -> np.ndarray | None:
        """Return a float32 vector, or None if the model has none of this name."""
        values = self.floats(name, size)
        self.hash(values)
        return values

    def floats(self, name: str, size: int) -> np.ndarray | None:
        if name not in self.source.tensors:
            return None
        values = self.tensor(name, (size,)).rows(0, size)
        if values.shape != (size,) or not np.isfinite(values).all():
            raise ModelError(f"{self.source.name}: the model is damaged: tensor {name} is not all finite numbers")
        return values

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        tensor = self.source.tensors.get(name)
        if tensor is None:
            raise self.missing(name)
        if tensor.shape != shape:
            raise ModelError(
                f"{self.source.name}: the model is damaged: tensor {name} has shape {list(tensor.shape)}, "
                f"and its description says {list(shape)}"
            )
        return tensor

    def missing(self, name: str) -> ModelError:
        return ModelError(f"{self.source.name}: the model is damaged or incomplete: it has no tensor {name}")

    def hash(self, *arrays: np.ndarray | None) -> None:
        """Hash the shape and little-endian bytes of arrays."""
        for array in arrays:
            shape = None if array is None else list(array.shape)
            self.digest.update(f"{shape}\n".encode())
            if array is not None:
                self.digest.update(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).data)
