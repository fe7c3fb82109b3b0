"""The linear layer of every stored form, which replaces a dense one and multiplies by the stored tensors.

A form's own layer defines how its tensors are prepared and how rows are multiplied. This module caches what was
prepared, flattens activations to rows, and adds the bias.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping
from math import prod
from operator import is_
from typing import Any, ClassVar, Generic, Self, TypeVar

import torch
from torch import nn
from torch.nn import functional

from squeeze.errors import FormatError, SqueezeError

__all__ = ["PreparedCache", "StoredLinear", "Tensors"]

P = TypeVar("P")  # the prepared form of a layer's tensors
Tensors = tuple[torch.Tensor | None, ...]


class PreparedCache(Generic[P]):
    """A cache of the prepared form of some tensors, valid until one of them is replaced.

    In-place changes of a tensor are not noticed: call `forget`. Copies and pickles are empty.
    """

    def __init__(self) -> None:
        self._tensors: Tensors = ()
        self._key: Hashable = None
        self._prepared: P | None = None

    def __reduce__(self) -> tuple[type[Self], tuple[()]]:
        return type(self), ()

    def find(self, tensors: Tensors, key: Hashable = None) -> P | None:
        """Return what was prepared of these tensors under this key; None if it is not cached."""
        same = len(tensors) == len(self._tensors) and all(map(is_, tensors, self._tensors))
        return self._prepared if same and key == self._key else None

    def store(self, tensors: Tensors, prepared: P, key: Hashable = None) -> P:
        """Keep a prepared form in place of the one before, and return it."""
        self._tensors, self._key, self._prepared = tensors, key, prepared
        return prepared

    def forget(self) -> None:
        """Drop the prepared form and the tensors that it was made of."""
        self._tensors, self._key, self._prepared = (), None, None


class StoredLinear(nn.Module, ABC, Generic[P]):
    """y = x W^T + b with a weight W [O, I] in a stored form.

    It is for inference: stored tensors take no gradients unless a subclass enables them; x does. A subclass defines
    `prepare`, `multiply`, `dequantize` and `weight_dtype`.

    Attributes:
        known_leaves: all leaves that the form may have; empty for those that are stored.
        by_dtype: whether the prepared form depends on the dtype of activations.
        differentiable: whether `multiply` supports gradients; if not, activations that need them are multiplied by the
            dense weight.
    """

    known_leaves: ClassVar[tuple[str, ...]] = ()
    by_dtype: ClassVar[bool] = False
    differentiable: ClassVar[bool] = True
    bias: nn.Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        tensors: Mapping[str, torch.Tensor],
        bias: torch.Tensor | None = None,
        name: str = "",
    ) -> None:
        """Hold the stored tensors.

        Args:
            in_features: I.
            out_features: O.
            tensors: tensors by leaf.
            bias: [O], or None.
            name: of the module, in errors.
        """
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.leaves = self.known_leaves or tuple(tensors)
        self._name = name or type(self).__name__
        self._cache: PreparedCache[P] = PreparedCache()
        for leaf in self.leaves:
            self._register(leaf, tensors.get(leaf))
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)

    @abstractmethod
    def prepare(self, dtype: torch.dtype) -> P:
        """Return the prepared form of the stored tensors, for `multiply`.

        `dtype` is that of activations, if `by_dtype`. Raises FormatError if the tensors are not those of such a layer.
        """

    @abstractmethod
    def multiply(self, rows: torch.Tensor, prepared: P) -> torch.Tensor:
        """Multiply rows [R, I] to [R, O] in their dtype, without the bias."""

    @abstractmethod
    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return a new dense weight [O, I]; changing it does not change the layer."""

    @property
    @abstractmethod
    def weight_dtype(self) -> torch.dtype:
        """The dtype of `weight`."""

    @property
    def weight(self) -> torch.Tensor:
        """The dense weight [O, I]."""
        return self.dequantize(self.weight_dtype)

    def stored(self) -> dict[str, torch.Tensor]:
        """Return the stored tensors that there are now, by leaf."""
        buffers, parameters = self._buffers, self._parameters
        found = {leaf: buffers[leaf] if leaf in buffers else parameters[leaf] for leaf in self.leaves}
        return {leaf: tensor for leaf, tensor in found.items() if tensor is not None}

    def prepared(self, dtype: torch.dtype = torch.float32) -> P:
        """Return what `prepare` makes of the tensors that are stored now, made once for them."""
        tensors, key = self._dependencies(), dtype if self.by_dtype else None
        found = self._cache.find(tensors, key)
        if found is None:
            found = self.prepare(dtype)
            if not self._is_fetched:
                self._cache.store(tensors, found, key)
        return found

    def _dependencies(self) -> Tensors:
        """Return all tensors that the prepared form may depend on. It is called for every product, so it is fast."""
        return (*self._buffers.values(), *self._parameters.values())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self._check(x)
        if not self.differentiable and torch.is_grad_enabled() and x.requires_grad:
            return functional.linear(x, self.dequantize(x.dtype), self._bias_as(x.dtype))
        y, bias = self.product(x), self._bias_as(x.dtype)
        return y if bias is None else y + bias

    def product(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply x [..., I] to [..., O], without the bias."""
        shape = *x.shape[:-1], self.out_features
        return self.multiply(self.flattened(x), self.prepared(x.dtype)).view(shape) if x.numel() else x.new_zeros(shape)

    def flattened(self, x: torch.Tensor) -> torch.Tensor:
        """Return x [..., I] as [R, I]."""
        return x.reshape(prod(x.shape[:-1]), self.in_features)

    def _check(self, x: torch.Tensor) -> None:
        if not x.is_floating_point() or not x.ndim or x.shape[-1] != self.in_features:
            wanted, got = f"floats of shape [..., {self.in_features}]", f"{x.dtype} of shape {list(x.shape)}"
            raise SqueezeError(f"{self._name}: expected {wanted}, got {got}")

    def _check_shape(self, shape: Iterable[int]) -> None:
        """Raise FormatError if the stored matrix has another shape than the layer."""
        got, wanted = tuple(shape), (self.out_features, self.in_features)
        if got != wanted:
            raise FormatError(f"{self._name}: expected a matrix of {wanted[0]} x {wanted[1]}, got {got[0]} x {got[1]}")

    def _bias_as(self, dtype: torch.dtype) -> torch.Tensor | None:
        return None if self.bias is None else self.bias.to(dtype)

    @property
    def _is_fetched(self) -> bool:
        """True if accelerate keeps the stored tensors elsewhere, and loads them for each call."""
        return bool(getattr(getattr(self, "_hf_hook", None), "offload", False))

    def _register(self, leaf: str, tensor: torch.Tensor | None) -> None:
        """Register a stored tensor, or None for a leaf that the weight does not have."""
        self.register_buffer(leaf, tensor)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        before = self._places()
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self._places() != before:  # a move that changes nothing keeps the cache: a CUDA graph may point there
            self._cache.forget()
        return self

    def _places(self) -> list[tuple[int, torch.device, torch.dtype]]:
        """Return the identity, device and dtype of each stored tensor; a parameter is moved in place."""
        return [(id(tensor), tensor.device, tensor.dtype) for tensor in self.stored().values()]

    def _load_from_state_dict(self, *arguments: Any, **options: Any) -> None:
        super()._load_from_state_dict(*arguments, **options)
        self._cache.forget()

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
