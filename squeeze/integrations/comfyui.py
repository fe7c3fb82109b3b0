"""Packed diffusion models in ComfyUI: a node that loads them, whose linear layers stay coded in memory.

A folder in ComfyUI's `custom_nodes` with this `__init__.py` installs the node:

    from squeeze.integrations.comfyui import NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS

Each layer decodes its weight just before use, on the device of its input, into a buffer that all layers share. So the
dense model is never in memory, and an offloaded layer is copied to a GPU coded. Other tensors are decoded once. A layer
that a LoRA changes becomes dense, and coded again when ComfyUI takes the LoRA away.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch.nn import functional
from torch.utils import _pytree

from squeeze.checkpoint.weight_files import read_index
from squeeze.errors import FormatError, SqueezeError, printable
from squeeze.integrations.coded_layers import Buffers, CodedWeight
from squeeze.packing.load import load
from squeeze.packing.weights import Entry

__all__ = ["NODE_CLASS_MAPPINGS", "NODE_DISPLAY_NAME_MAPPINGS", "CodedTensor", "LoadPacked", "operations", "state_dict"]

_FOLDER = "diffusion_models"
_LEAST = 1 << 16  # bytes of a weight that stays coded
_SLOT = 0


class CodedTensor(torch.Tensor):
    """A weight that is coded, with the shape and dtype of the decoded one, or a view of such a weight.

    A layer of `operations` takes the payload of a whole weight. Any other use, such as a split into parts, decodes it
    first. Neither can be changed in place, since a change would be lost when the weight is next decoded.
    """

    entry: Entry | None  # None for a view, whose values are decoded
    viewed: torch.Tensor | None

    @staticmethod
    def __new__(cls, entry: Entry | None, like: torch.Tensor) -> CodedTensor:
        """Wrap a coded tensor of a loaded checkpoint, or the values of a view.

        Args:
            entry: the coded tensor, or None for a view
            like: the decoded values, whose dtype and shape the wrapper has; a view keeps them
        """
        made = torch.Tensor._make_wrapper_subclass(
            cls, like.shape, strides=like.stride(), dtype=like.dtype, device=torch.device("cpu")
        )
        made.entry, made.viewed = entry, like if entry is None else None
        return made

    def __init__(self, *arguments: Any) -> None:
        pass

    def decode(self) -> torch.Tensor:
        """Return the values, as an ordinary tensor."""
        if self.entry is not None:
            return self.entry.decode()
        assert self.viewed is not None
        return self.viewed

    def numpy(self, *, force: bool = False) -> Any:
        """Return a copy of the values as an array."""
        return self.decode().clone().numpy(force=force)

    def tolist(self) -> Any:
        return self.decode().tolist()

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        given = {argument.name: one for argument, one in zip(func._schema.arguments, args, strict=False)} | kwargs
        aliased = [(one.alias_info.is_write, given.get(one.name)) for one in func._schema.arguments if one.alias_info]
        coded = [
            (written, one)
            for written, value in aliased
            for one in (value if isinstance(value, list | tuple) else (value,))  # several tensors of torch._foreach
            if isinstance(one, cls)
        ]
        if any(written for written, _ in coded):
            raise SqueezeError(f"a coded weight cannot be changed in place ({func}): take a copy of it (clone)")
        if func is torch.ops.aten.detach.default and args[0].entry is not None:
            return cls(args[0].entry, args[0])
        args, kwargs = _pytree.tree_map_only(cls, cls.decode, (args, kwargs))
        found = func(*args, **kwargs)
        return _pytree.tree_map_only(torch.Tensor, lambda one: cls(None, one), found) if coded else found


def state_dict(path: Path | str) -> dict[str, torch.Tensor]:
    """Return the tensors of a packed file, or of the folder if the file is a shard that its index names.

    Large matrices are CodedTensor. Every checksum is compared. Raises FormatError if the file is not packed.
    """
    weights = load(_whole(Path(path)), threads=torch.get_num_threads())
    found: dict[str, torch.Tensor] = {}
    for name, entry in weights.entries.items():
        values = entry.decode(threads=weights.threads)  # compares the checksum
        is_coded = entry.stays_coded and values.ndim == 2 and values.nbytes >= _LEAST
        found[name] = CodedTensor(entry, values) if is_coded else values
    return found


def _whole(path: Path) -> Path:
    for index in sorted(path.parent.glob("*.safetensors.index.json")):
        if path.name in read_index(index).values():
            return path.parent
    return path


class CodedLayer(torch.nn.Linear):
    """A linear layer whose weight is dense, or the payload of a coded one (uint8)."""

    decode_buffers: ClassVar[Buffers] = Buffers()
    weight_function: Sequence[Any] = ()
    bias_function: Sequence[Any] = ()

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__(in_features, out_features, bias=bias, device="meta", dtype=dtype)
        if bias:
            self.bias = torch.nn.Parameter(torch.zeros(out_features, dtype=dtype, device=device))
        self.coded: CodedWeight | None = None

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *arguments: Any) -> None:
        weight = state.pop(f"{prefix}weight", None)
        missing, errors = arguments[2], arguments[4]
        super()._load_from_state_dict(state, prefix, *arguments)
        if weight is None:
            return
        missing.remove(f"{prefix}weight")
        if tuple(weight.shape) != (self.out_features, self.in_features):
            errors.append(f"size mismatch for {prefix}weight: {tuple(weight.shape)}")
        elif isinstance(weight, CodedTensor) and weight.entry is not None:
            self.coded = CodedWeight(weight.entry.record, weight.dtype, self.decode_buffers, _SLOT, 0)
            self.weight = torch.nn.Parameter(weight.entry.payload, requires_grad=False)
        else:
            values = weight.decode() if isinstance(weight, CodedTensor) else weight
            self.weight = torch.nn.Parameter(values, requires_grad=False)

    @property
    def is_coded(self) -> bool:
        """True if the weight is a payload now."""
        return self.coded is not None and self.weight.dtype == torch.uint8 and self.weight.ndim == 1

    def convert_weight(self, weight: torch.Tensor, inplace: bool = False, **options: Any) -> torch.Tensor:
        """Return the dense weight for ComfyUI, which may have cast the payload's bytes to another dtype."""
        if self.coded is None or weight.ndim != 1:
            return weight
        return self.coded.decode(weight.to(torch.uint8), own_buffer=True)

    def set_weight(self, weight: torch.Tensor, *, return_weight: bool = False, **options: Any) -> torch.Tensor | None:
        """Take a changed dense weight from ComfyUI."""
        weight = weight.to(self.coded.dtype) if self.coded else weight
        if return_weight:
            return weight
        self.weight = torch.nn.Parameter(weight, requires_grad=False)
        return None

    def forward_comfy_cast_weights(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.weight.to(x.device)
        if self.is_coded:
            assert self.coded is not None
            weight = self.coded.decode(weight, own_buffer=bool(self.weight_function))
        weight = weight.to(x.dtype)
        for change in self.weight_function:
            weight = change(weight)
        bias = None if self.bias is None else self.bias.to(x.device, x.dtype)
        for change in self.bias_function if bias is not None else ():
            bias = change(bias)
        return functional.linear(x, weight, bias)

    def forward(self, x: torch.Tensor, *arguments: Any) -> torch.Tensor:
        return self.forward_comfy_cast_weights(x)


@cache
def operations(base: type[Any]) -> type[Any]:
    """Return ComfyUI's operations with linear layers that take coded weights. base: comfy.ops.manual_cast."""
    return type("SqueezeOperations", (base,), {"Linear": type("Linear", (CodedLayer, base.Linear), {})})


class LoadPacked:
    """The node: a packed file of `models/diffusion_models` as a MODEL."""

    RETURN_TYPES = ("MODEL",)
    FUNCTION = "load"
    CATEGORY = "loaders"

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        """Return the inputs, as ComfyUI asks for them."""
        import folder_paths

        return {"required": {"name": (folder_paths.get_filename_list(_FOLDER),)}}

    def load(self, name: str) -> tuple[Any]:
        """Load the model. Raises FormatError if the file is not packed, or ComfyUI does not know the model."""
        import comfy.ops
        import comfy.sd
        import folder_paths

        path = folder_paths.get_full_path_or_raise(_FOLDER, name)
        loaded = getattr(comfy.sd, "load_diffusion_model_state_dict", None)
        if loaded is None or not hasattr(comfy.ops, "manual_cast"):
            raise SqueezeError(
                "this ComfyUI has another interface than squeeze knows: restore the file by `squeeze unpack`"
            )
        options = {"custom_operations": operations(comfy.ops.manual_cast)}
        model = loaded(state_dict(path), model_options=options)
        if model is None:
            raise FormatError(f"{printable(name)}: ComfyUI does not know this kind of model")
        return (model,)


NODE_CLASS_MAPPINGS = {"SqueezeLoadPacked": LoadPacked}
NODE_DISPLAY_NAME_MAPPINGS = {"SqueezeLoadPacked": "Load packed diffusion model (squeeze)"}
