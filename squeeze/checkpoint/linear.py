"""The linear layer of every stored form: it takes the place of a dense one, and multiplies by what is stored.

A form's own layer says how its tensors are prepared and how rows are multiplied by them. Everything else is here: what
was prepared is kept, activations are flattened to rows, the bias is added.
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

__all__ = ["Kept", "StoredLinear", "Tensors"]

P = TypeVar("P")  # what a layer prepares of its tensors
Tensors = tuple[torch.Tensor | None, ...]


class Kept(Generic[P]):
    """The prepared form of some tensors, valid until one of them is replaced.

    A value written into a tensor is not noticed: whoever writes calls `forget`. Copies and pickles are empty.
    """

    def __init__(self) -> None:
        self._tensors: Tensors = ()
        self._key: Hashable = None
        self._prepared: P | None = None

    def __reduce__(self) -> tuple[type[Self], tuple[()]]:
        return type(self), ()

    def find(self, tensors: Tensors, key: Hashable = None) -> P | None:
        """Return what was prepared of these tensors under this key; None if it was not, or for others."""
        same = len(tensors) == len(self._tensors) and all(map(is_, tensors, self._tensors))
        return self._prepared if same and key == self._key else None

    def keep(self, tensors: Tensors, prepared: P, key: Hashable = None) -> P:
        """Keep a prepared form in place of the one before, and return it."""
        self._tensors, self._key, self._prepared = tensors, key, prepared
        return prepared

    def forget(self) -> None:
        """Drop the prepared form and the tensors that it was made of."""
        self._tensors, self._key, self._prepared = (), None, None


class StoredLinear(nn.Module, ABC, Generic[P]):
    """y = x W^T + b with a weight W [O, I] in a stored form. For inference: what is stored takes no gradients, unless a
    child says so; x does.

    A child defines `prepare`, `multiply`, `dequantize` and `weight_dtype`. by_dtype: whether what it prepares depends
    on the dtype of activations. differentiable: whether `multiply` lets gradients through; if it does not, activations
    that take gradients are multiplied by the dense weight.
    """

    known_leaves: ClassVar[tuple[str, ...]] = ()  # all that the form may have; without, those that are stored
    by_dtype: ClassVar[bool] = False
    differentiable: ClassVar[bool] = True
    bias: nn.Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        stored: Mapping[str, torch.Tensor],
        bias: torch.Tensor | None = None,
        name: str = "",
    ) -> None:
        """stored: the tensors by leaf. name: of the module, in errors."""
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.leaves = self.known_leaves or tuple(stored)
        self._name = name or type(self).__name__
        self._kept: Kept[P] = Kept()
        for leaf in self.leaves:
            self._hold(leaf, stored.get(leaf))
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)

    @abstractmethod
    def prepare(self, dtype: torch.dtype) -> P:
        """What `multiply` needs of the tensors that are stored now. dtype: of activations, if `by_dtype`. Raises
        FormatError if the tensors are not those of such a layer."""

    @abstractmethod
    def multiply(self, rows: torch.Tensor, prepared: P) -> torch.Tensor:
        """rows [R, I] -> [R, O] in their dtype, without the bias."""

    @abstractmethod
    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return the dense weight [O, I], made anew: a value written into it changes nothing."""

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
        tensors, key = self._made_of(), dtype if self.by_dtype else None
        found = self._kept.find(tensors, key)
        if found is None:
            found = self.prepare(dtype)
            if not self._is_fetched:
                self._kept.keep(tensors, found, key)
        return found

    def _made_of(self) -> Tensors:
        """All tensors that what is prepared may be made of, quickly: each product asks."""
        return (*self._buffers.values(), *self._parameters.values())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self._check(x)
        if not self.differentiable and torch.is_grad_enabled() and x.requires_grad:
            return functional.linear(x, self.dequantize(x.dtype), self._bias_as(x.dtype))
        y, bias = self.product(x), self._bias_as(x.dtype)
        return y if bias is None else y + bias

    def product(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., I] -> x W^T [..., O]."""
        shape = *x.shape[:-1], self.out_features
        return self.multiply(self.flattened(x), self.prepared(x.dtype)).view(shape) if x.numel() else x.new_zeros(shape)

    def flattened(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., I] as [R, I]."""
        return x.reshape(prod(x.shape[:-1]), self.in_features)

    def _check(self, x: torch.Tensor) -> None:
        if not x.is_floating_point() or not x.ndim or x.shape[-1] != self.in_features:
            wanted, got = f"floats of shape [..., {self.in_features}]", f"{x.dtype} of shape {list(x.shape)}"
            raise SqueezeError(f"{self._name}: expected {wanted}, got {got}")

    def _check_shape(self, shape: Iterable[int]) -> None:
        """Raises FormatError if what is stored is a matrix of another shape than the layer's."""
        got, wanted = tuple(shape), (self.out_features, self.in_features)
        if got != wanted:
            raise FormatError(
                f"{self._name}: is a matrix of {got[0]} x {got[1]}, and the layer is {wanted[0]} x {wanted[1]}"
            )

    def _bias_as(self, dtype: torch.dtype) -> torch.Tensor | None:
        return None if self.bias is None else self.bias.to(dtype)

    @property
    def _is_fetched(self) -> bool:
        """Whether accelerate keeps the stored tensors elsewhere, and brings them for each call."""
        return bool(getattr(getattr(self, "_hf_hook", None), "offload", False))

    def _hold(self, leaf: str, tensor: torch.Tensor | None) -> None:
        """Register a stored tensor, or None for a leaf that the weight does not have."""
        self.register_buffer(leaf, tensor)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        before = self._places()
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self._places() != before:  # a move to where all lies already keeps it: a CUDA graph may point there
            self._kept.forget()
        return self

    def _places(self) -> list[tuple[int, torch.device, torch.dtype]]:
        """Which tensors are stored, and where: a parameter is moved in place."""
        return [(id(tensor), tensor.device, tensor.dtype) for tensor in self.stored().values()]

    def _load_from_state_dict(self, *arguments: Any, **options: Any) -> None:
        super()._load_from_state_dict(*arguments, **options)
        self._kept.forget()

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
