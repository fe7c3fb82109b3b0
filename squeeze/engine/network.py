"""A decoder of which only the parts at work are in memory: built by transformers without weights, filled by block.

Which tensor of the checkpoint belongs to which parameter is what transformers itself makes of their names. Fused
experts (one parameter of three dimensions for all) are taken apart into one linear module for each expert's matrix.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.checkpoint.pretrained import check_size, empty_model, explained, load_config
from squeeze.engine.calibration import Stop
from squeeze.errors import FormatError, ModelError, SqueezeError

__all__ = ["Call", "Network", "find_blocks", "is_linear", "weight_of"]

_EXPERT = re.compile(r"(.*)\.experts\.(\d+)\.")


@dataclass(frozen=True)
class Call:
    """What a block is called with besides the hidden states."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Expert(nn.Module):
    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(inputs, hidden, bias=False)
        self.up_proj = nn.Linear(inputs, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, inputs, bias=False)


class Experts(nn.Module):
    """A fused experts module of transformers with a linear module for each matrix."""

    def __init__(self, fused: nn.Module) -> None:
        super().__init__()
        count, inputs, hidden = fused.down_proj.shape  # type: ignore[misc]
        with torch.device("meta"):
            self.experts = nn.ModuleList(Expert(inputs, hidden) for _ in range(count))  # type: ignore[call-overload]
        self.gate: Callable[[torch.Tensor], torch.Tensor] = fused._apply_gate  # type: ignore[assignment]
        self.__dict__["fused"] = fused  # whose activation _apply_gate uses

    def forward(self, hidden: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """hidden [T, H], chosen and weights [T, K]."""
        out = torch.zeros_like(hidden)
        for number, expert in enumerate(self.experts):
            token, rank = torch.where(chosen == number)
            if len(token):
                x = hidden[token]
                gate_and_up = torch.cat([expert.gate_proj(x), expert.up_proj(x)], -1)  # type: ignore[operator]
                y = expert.down_proj(self.gate(gate_and_up)) * weights[token, rank, None]  # type: ignore[operator]
                out.index_add_(0, token, y.to(out.dtype))
        return out


def _can_take_apart(module: nn.Module) -> bool:
    shapes = {name: parameter.ndim for name, parameter in module.named_parameters(recurse=False)}
    plain = getattr(module, "has_gate", False) and not getattr(module, "is_transposed", True)
    return shapes == {"gate_up_proj": 3, "down_proj": 3} and plain and getattr(module, "is_concatenated", False)


def is_linear(module: nn.Module) -> bool:
    """Whether a module multiplies by a matrix: torch's Linear, or the Conv1D of GPT-2, which stores it transposed."""
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"


def weight_of(module: nn.Module) -> torch.Tensor:
    """A view [O, I] of a linear module's weight."""
    weight: torch.Tensor = module.weight  # type: ignore[assignment]
    return weight if isinstance(module, nn.Linear) else weight.T


class Network:
    """`blocks` are the names of its decoder blocks; `sources` the checkpoint's tensor for each parameter."""

    def __init__(self, checkpoint: Checkpoint, device: str = "cpu") -> None:
        """Raises ModelError for an architecture that transformers cannot run, FormatError where a tensor is missing."""
        self.checkpoint, self.device = checkpoint, torch.device(device)
        self.model = _empty_model(checkpoint)
        names = self._names()
        self._take_experts_apart(names)
        self.blocks = find_blocks(self.model)
        self._check_whole()

    def module(self, name: str) -> nn.Module:
        module: nn.Module = self.model.get_submodule(name)
        return module

    def stored_name(self, name: str) -> str:
        """The checkpoint's name of a module that has a weight."""
        return self.sources.get(f"{name}.weight", f"{name}.weight").removesuffix(".weight")

    def check(self, tokens: torch.Tensor) -> None:
        """Raises SqueezeError where the network cannot run tokens [N, L]."""
        config = self.model.config.get_text_config()
        if tokens.numel() == 0:
            raise SqueezeError("there are no calibration tokens")
        if int(tokens.max()) >= config.vocab_size or int(tokens.min()) < 0:
            raise SqueezeError(f"calibration tokens lie outside the model's vocabulary of {config.vocab_size}")
        longest = getattr(config, "max_position_embeddings", None)
        if longest and tokens.shape[1] > longest:
            raise SqueezeError(f"sequences of {tokens.shape[1]} tokens are longer than the model's {longest}")

    def _names(self) -> dict[str, list[tuple[str, int]]]:
        """For each parameter the tensors that it is made of, each with the place of its pattern in the conversion."""
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

        transforms = get_model_conversion_mapping(self.model)
        renamings = [entry for entry in transforms if isinstance(entry, WeightRenaming)]
        converters = [entry for entry in transforms if isinstance(entry, WeightConverter)]
        places = {pattern: i for entry in converters for i, pattern in enumerate(entry.source_patterns)}
        state, prefix = self.model.state_dict(), self.model.base_model_prefix
        sources: dict[str, list[tuple[str, int]]] = {}
        for name in self.checkpoint.files:
            target, pattern = rename_source_key(name, renamings, converters, prefix, state)
            sources.setdefault(target, []).append((name, places.get(pattern, 0) if pattern else 0))
        self.sources = {target: parts[0][0] for target, parts in sources.items() if len(parts) == 1}
        return sources

    def _take_experts_apart(self, names: dict[str, list[tuple[str, int]]]) -> None:
        for path, module in list(self.model.named_modules()):
            fused = {name: names.get(f"{path}.{name}", []) for name, _ in module.named_parameters(recurse=False)}
            if not _can_take_apart(module) or min(map(len, fused.values())) < 2:
                continue
            self.model.set_submodule(path, Experts(module))
            for name, parts in fused.items():
                for source, position in parts:
                    expert = _EXPERT.match(source)
                    if not expert:
                        raise ModelError(f"{self.checkpoint.folder}: tensor {source!r} is of no known expert")
                    leaf = "down_proj" if name == "down_proj" else ("gate_proj", "up_proj")[position]
                    self.sources[f"{path}.experts.{expert[2]}.{leaf}.weight"] = source

    def _check_whole(self) -> None:
        tied = set(getattr(self.model, "all_tied_weights_keys", None) or {})
        for name, parameter in self.model.named_parameters():
            if name in self.sources:
                stored = self.checkpoint.info(self.sources[name]).shape
                if stored != tuple(parameter.shape):
                    raise FormatError(
                        f"{self.checkpoint.folder}: tensor {self.sources[name]!r} has shape {list(stored)}, "
                        f"and config.json makes it {list(parameter.shape)}"
                    )
            elif name not in tied:
                raise FormatError(f"{self.checkpoint.folder}: the checkpoint has no tensor for {name!r}")

    def load(self, name: str, dtype: torch.dtype | None = torch.float32) -> nn.Module:
        """Fill a module with its weights; dtype: None for their own."""
        module = self.module(name)
        parameters = [key for key, _ in module.named_parameters()]
        tensors = self.checkpoint.load(self.sources[f"{name}.{key}"] for key in parameters)
        for key in parameters:
            owner, leaf = _owner(module, key)
            value = tensors.pop(self.sources[f"{name}.{key}"]).to(self.device, dtype)
            owner._parameters[leaf] = nn.Parameter(value, requires_grad=False)
        for buffer_owner in module.modules():
            for leaf, buffer in buffer_owner._buffers.items():
                if buffer is not None:
                    buffer_owner._buffers[leaf] = buffer.to(self.device)
        return module

    def release(self, name: str) -> None:
        """Let a module's weights go."""
        module = self.module(name)
        for owner in module.modules():
            for leaf, parameter in owner._parameters.items():
                if parameter is not None:
                    owner._parameters[leaf] = nn.Parameter(parameter.data.to("meta"), requires_grad=False)

    def tensors_of(self, name: str) -> dict[str, str]:
        """The checkpoint's tensor for each parameter and stored buffer below a module."""
        return {key: source for key, source in self.sources.items() if key.startswith(f"{name}.")}

    def calls(self, tokens: torch.Tensor) -> list[Call]:
        """What each block is called with when sequences of tokens [N, L] run."""
        with self._surroundings():
            return self._record(tokens[:1])[1]

    def first_inputs(self, tokens: torch.Tensor) -> Iterator[torch.Tensor]:
        """The first block's inputs [L, H] for each sequence of tokens [N, L]."""
        with self._surroundings():
            for ids in torch.split(tokens, 1):
                yield self._record(ids)[0]

    @contextmanager
    def _surroundings(self) -> Iterator[None]:
        """What runs before and after the blocks is loaded meanwhile, in its own type."""
        outer = [name for name in self._outer() if any(True for _ in self.module(name).parameters())]
        for name in outer:
            self.load(name, None)
        try:
            yield
        finally:
            for name in outer:
                self.release(name)

    def _outer(self) -> list[str]:
        """Modules before the blocks, the nearest to the root: embeddings, norms, rotary angles."""
        around, _, _ = self.blocks[0].rpartition(".")
        parent, _, stack = around.rpartition(".")
        children = [f"{parent}.{name}" if parent else name for name, _ in self.module(parent).named_children()]
        return [name for name in children if name != (f"{parent}.{stack}" if parent else stack)]

    @torch.inference_mode()
    def _record(self, ids: torch.Tensor) -> tuple[torch.Tensor, list[Call]]:
        """Run the decoder around its blocks, each of which only notes what it was given."""
        first: list[torch.Tensor] = []
        calls: list[Call] = []

        def note(hidden: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            first.append(hidden)
            calls.append(Call(args, kwargs))
            return hidden

        blocks = [self.module(name) for name in self.blocks]
        for block in blocks:
            block.forward = note
        try:
            parent = self.blocks[0].rpartition(".")[0].rpartition(".")[0]
            with explained(self.checkpoint.folder):
                self.module(parent)(input_ids=ids.to(self.device), use_cache=False)
        finally:
            for block in blocks:
                del block.forward
        return first[0][0].float(), calls


def run_block(block: nn.Module, hidden: torch.Tensor, call: Call) -> torch.Tensor:
    """[L, H] to [L, H]. Raises ModelError where the block cannot run."""
    with explained(type(block).__name__, Stop, OSError):  # a disk is full where inputs are kept
        out = block(hidden[None], *call.args, **call.kwargs)
    output: torch.Tensor = (out[0] if isinstance(out, tuple) else out)[0]
    return output


def _empty_model(checkpoint: Checkpoint) -> Any:
    """Without weights, but with its buffers."""
    from accelerate import init_empty_weights
    from transformers import AutoModelForCausalLM

    folder = checkpoint.folder
    if checkpoint.config.get("quantization_config"):
        raise ModelError(f"{folder}: is quantised already; start from the original")
    config = load_config(folder)
    config.tie_word_embeddings = checkpoint.config.get("tie_word_embeddings", config.tie_word_embeddings)
    with explained(folder):
        check_size(empty_model(config), checkpoint)
        with init_empty_weights(include_buffers=False):
            model = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
                config, dtype=torch.float32, trust_remote_code=False
            )
    return model.eval()


def find_blocks(model: nn.Module) -> list[str]:
    """The longest list of modules that lies in no other."""
    lists = {name: module for name, module in model.named_modules() if isinstance(module, nn.ModuleList)}
    outer = {name: m for name, m in lists.items() if not any(name.startswith(f"{other}.") for other in lists)}
    if not outer:
        raise ModelError(f"{type(model).__name__}: has no list of blocks; decoder-only architectures are supported")
    name = max(outer, key=lambda key: len(outer[key]))
    return [f"{name}.{i}" for i in range(len(outer[name]))]


def _owner(module: nn.Module, key: str) -> tuple[nn.Module, str]:
    path, _, leaf = key.rpartition(".")
    return module.get_submodule(path), leaf
