"""Calibration inputs: sequences of tokens, or samples of named tensors as a model's forward takes them."""

import inspect
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from squeeze.errors import SqueezeError, printable

__all__ = [
    "Inputs",
    "Samples",
    "arguments",
    "check_samples",
    "first_of",
    "flat",
    "only_tokens",
    "parameters_of",
    "spread",
    "texts_in",
    "varied",
]

IDS = "input_ids"
_TOKENS = 256  # that a sample without ids counts as
_FORM = ("return_dict", "use_cache", "output_attentions", "output_hidden_states")  # say what a forward returns


@dataclass(frozen=True)
class Samples:
    """Samples of one shape, each with the tensors of one call of a model's forward by their arguments' names.

    A tensor inside of an argument, such as a table, is named `argument.key`, and one in a tuple `argument.0`.
    `left_out` are the names of arguments that are texts, which samples do not hold.
    """

    samples: tuple[Mapping[str, torch.Tensor], ...]
    left_out: tuple[str, ...] = ()

    @classmethod
    def of(cls, samples: Iterable[Mapping[str, Any]]) -> "Samples":
        """Collect samples. Raises SqueezeError if there are no samples, or their tensors differ in shape."""
        collected: list[Mapping[str, torch.Tensor]] = []
        texts: dict[str, None] = {}
        for sample in samples:
            texts |= dict.fromkeys(texts_in(sample))
            named = dict(flat(sample))
            _check_names(named)
            if collected and _shape_of(named) != _shape_of(collected[0]):
                raise SqueezeError(
                    f"expected samples of one shape, got {_shown(collected[0])} and {_shown(named)}: "
                    "pad, crop or resize them"
                )
            collected.append(named)
        if not collected or not collected[0]:
            raise SqueezeError("expected calibration samples, got none")
        return cls(tuple(collected), tuple(texts))

    def __len__(self) -> int:
        return len(self.samples)

    def __iter__(self) -> Iterator[Mapping[str, torch.Tensor]]:
        return iter(self.samples)

    def __getitem__(self, part: slice) -> "Samples":
        return Samples(self.samples[part], self.left_out)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on what samples do not hold, for a report."""
        names = ", ".join(map(printable, self.left_out))
        return (f"calibrated without these arguments, which are texts: {names}",) if names else ()


def flat(values: Mapping[str, Any], outer: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors and numbers among arguments, those in tables and tuples too, by their names in a sample.

    Texts are left out (texts_in), and so are arguments that only say what a forward returns.

    Raises SqueezeError if a tuple also has other values.
    """
    for key, value in values.items():
        name = f"{outer}{key}"
        if isinstance(value, Mapping):
            yield from flat(value, f"{name}.")
        elif isinstance(value, tuple | list) and (outer or any(map(_is_part, value))):
            if any(one is None or isinstance(one, bool | str) for one in value):
                raise SqueezeError(f"{printable(name)}: expected tensors and numbers, got a tuple with other values")
            yield from flat({str(number): one for number, one in enumerate(value)}, f"{name}.")
        elif value is not None and not isinstance(value, str) and name not in _FORM:
            yield name, torch.as_tensor(value)


def texts_in(values: Mapping[str, Any], outer: str = "") -> Iterator[str]:
    """Yield the names of texts among arguments, those in tables too."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from texts_in(value, f"{outer}{key}.")
        elif isinstance(value, str):
            yield f"{outer}{key}"


def _check_names(names: Collection[str]) -> None:
    """Raise SqueezeError if an argument is a tensor and a table, or a part of a tuple is missing."""
    parts: dict[str, set[str]] = {}
    for name in names:
        outer, dot, last = name.rpartition(".")
        while dot:
            parts.setdefault(outer, set()).add(last)
            outer, dot, last = outer.rpartition(".")
    for outer, keys in parts.items():
        if outer in names:
            raise SqueezeError(f"expected one value of {printable(repr(outer))}, got a tensor and parts of it")
        missing = {str(number) for number in range(len(keys))} - keys
        if missing and all(map(str.isdecimal, keys)):
            raise SqueezeError(f"expected all parts of {printable(repr(outer))}, got none named {outer}.{min(missing)}")


def _is_part(value: Any) -> bool:
    return isinstance(value, torch.Tensor | tuple | list)


Inputs = torch.Tensor | Samples  # tokens [N, L], or samples


def _shape_of(sample: Mapping[str, torch.Tensor]) -> dict[str, tuple[Any, ...]]:
    return {name: (tuple(value.shape), value.dtype) for name, value in sample.items()}


def _shown(sample: Mapping[str, torch.Tensor]) -> str:
    return ", ".join(f"{printable(name)} {list(value.shape)}" for name, value in sample.items())


def spread(inputs: Inputs) -> Iterator[Mapping[str, torch.Tensor]]:
    """Yield each sample's tensors by name; a sequence of tokens is one sample."""
    if isinstance(inputs, Samples):
        yield from inputs
    else:
        for ids in torch.split(inputs, 1):
            yield {IDS: ids}


def first_of(inputs: Inputs, tokens: int) -> Inputs:
    """Return the first inputs that have together at most `tokens` tokens, at least one; samples count by their ids."""
    first = next(spread(inputs))
    return inputs[: max(tokens // max(first[IDS].numel() if IDS in first else _TOKENS, 1), 1)]


def only_tokens(inputs: Inputs, what: str, advice: str) -> torch.Tensor:
    """Return inputs that are tokens [N, L].

    Args:
        inputs: Tokens, or samples.
        what: What only tokens can be used for.
        advice: What to do with samples in its place.

    Raises:
        SqueezeError: The inputs are samples.
    """
    if isinstance(inputs, Samples):
        raise SqueezeError(f"{what} needs the loss of a causal language model, got samples that are not text: {advice}")
    return inputs


def varied(inputs: Inputs) -> Mapping[str, torch.Tensor]:
    """Return a sample of the shape of the first, of which as much as possible differs from it."""
    first = next(spread(inputs))
    if not isinstance(inputs, Samples):
        return {IDS: first[IDS].roll(1, 1)}
    if len(inputs) == 1:
        return _shifted(first)
    other = {}
    for name, value in first.items():
        differing = (sample[name] for sample in inputs if not torch.equal(sample[name], value))
        other[name] = next(differing, value)
    return other


def _shifted(sample: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return a sample with its floats, its tokens and what there is for each of them moved by one place."""
    ids = [value.shape for name, value in sample.items() if name.endswith(IDS) and value.dim() == 2]
    return {
        name: value.roll(1, -1) if value.dim() > 1 and (value.is_floating_point() or value.shape in ids) else value
        for name, value in sample.items()
    }


def arguments(model: nn.Module, sample: Mapping[str, torch.Tensor], device: torch.device | str) -> dict[str, Any]:
    """Return the arguments of a model's forward for a sample: without a cache, and with float inputs in float32.

    Tensors without dimensions become numbers.
    """
    taken: dict[str, Any] = {}
    for name, value in sample.items():
        moved = value.to(device)
        *outer, last = name.split(".")
        inside = taken
        for part in outer:
            inside = inside.setdefault(part, {})
        inside[last] = moved.float() if moved.is_floating_point() else moved
        if moved.dim() == 0:
            inside[last] = moved.item()
    taken = {name: _joined(value) for name, value in taken.items()}
    return taken | ({"use_cache": False} if "use_cache" in parameters_of(model) else {})


def _joined(value: Any) -> Any:
    """Return a table whose keys are numbers as a tuple, or as a list of tuples; other values unchanged."""
    if not isinstance(value, dict):
        return value
    inner = {key: _joined(one) for key, one in value.items()}
    if not all(key.isdecimal() for key in inner):
        return inner
    parts = [inner[key] for key in sorted(inner, key=int)]
    return parts if any(isinstance(part, tuple | list) for part in parts) else tuple(parts)


def parameters_of(model: nn.Module | type[nn.Module]) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of the forward of a model, or of a class, by name."""
    kind = model if isinstance(model, type) else type(model)
    return inspect.signature(kind.forward).parameters


def check_samples(model: nn.Module, inputs: Samples) -> None:
    """Raise SqueezeError if a model's forward does not take the samples' names, or lacks a value that it needs."""
    known = parameters_of(model)
    unknown = [name for name in inputs.samples[0] if name.partition(".")[0] not in known]
    if unknown:
        names = [name for name in known if name not in ("self", "kwargs")]
        raise SqueezeError(
            f"{type(model).__name__} takes no {printable(repr(unknown[0]))}: choose from {', '.join(names)}"
        )
    for name, value in ((name, value) for sample in inputs for name, value in sample.items()):
        if value.is_floating_point() and not bool(value.isfinite().all()):
            raise SqueezeError(f"expected finite numbers in {printable(repr(name))}, got NaN or infinity")
