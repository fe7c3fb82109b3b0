"""The report of a compression: sizes, errors and fallbacks, layer by layer, as JSON, a table or a model card's
section."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from squeeze.engine.output_quality import OutputQuality, check_outputs
from squeeze.engine.tasks import TaskScore, check_drops
from squeeze.errors import FormatError, QualityError
from squeeze.system import files
from squeeze.system.documents import read_object

__all__ = ["Layer", "Quality", "Report", "settings_in_words"]

NAME = "compression_report.json"
_DENSE_4_BITS = 4.125  # bits a weight
_AS_THEY_ARE = "surrogateescape"  # for bytes of a card that are not UTF-8


@dataclass(frozen=True)
class Quality:
    """The results of quality.evaluate; from kl_mean on they are None without an original to compare with.

    Attributes:
        perplexity: exp of the mean negative log-likelihood.
        tokens: predictions made.
        tokens_per_second: of the model's own forward passes.
        kl_mean, kl_p99: mean and 99th percentile of KL(original || model), nats a token.
        top1_agreement: share of positions at which both models rank the same token first.
        ratio: perplexity relative to the original's.
        intervals: 95 % confidence intervals of perplexity, kl_mean, top1_agreement and ratio (intervals.py): the values
            that other text of the same kind would give; for the ratio with the same text for both models.
    """

    perplexity: float
    tokens: int
    tokens_per_second: float
    kl_mean: float | None = None
    kl_p99: float | None = None
    top1_agreement: float | None = None
    ratio: float | None = None
    intervals: dict[str, list[float]] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Layer:
    """One compressed matrix.

    Attributes:
        name: of its module in the checkpoint.
        shape: (O, I).
        method: that compressed it, after fallbacks.
        bits: per weight with all side information, before files are joined.
        error: ||(W - Q) X||^2 / ||W X||^2 on calibration inputs X; of the weights themselves without inputs; None if
            matrices were changed together before.
        tokens: calibration inputs seen.
        notes: for the report.
        sparsity: share of the weights that are 0.
        pattern: of sparsity, which every group was checked to follow.
        rank: of a product of two factors.
        seconds: for compressing it, without its statistics.
        histogram: of its weights before and after; see solving.histogram.
    """

    name: str
    shape: tuple[int, int]
    method: str
    bits: float
    error: float | None
    tokens: int
    notes: tuple[str, ...] = ()
    sparsity: float = 0.0
    pattern: str | None = None
    rank: int | None = None
    seconds: float = 0.0
    histogram: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Self:
        return cls(**{**document, "shape": tuple(document["shape"]), "notes": tuple(document["notes"])})

    def as_json(self) -> dict[str, Any]:
        return dict(vars(self))  # asdict copies each number of the histogram


@dataclass
class Report:
    """The report of a compressed checkpoint.

    Attributes:
        method, format, settings: as requested.
        layers: of the compressed matrices.
        left: matrices that stay dense, with the reason.
        parameters: values in the checkpoint.
        raw_bytes, stored_bytes: of its tensors before and after.
        packed: bytes of all files before and after packing; None if they were not packed.
        seconds: for the compression.
        before, after: quality of the original and of the result.
        parts: stored bytes of each module.
        outer: stored bits per weight of the input embedding and the output head, by module.
        predicted: rises of the loss, nats a token, of a plan and of the alternative.
        tasks: scores, with the original's as base.
        notes: deviations from the request, and remarks on the whole.
        outputs: distances of outputs from the original's, of models without a perplexity.
        experts: of each layer of experts whose number was reduced: how many there were (`experts`), the numbers of
            those that were `kept`, the share of the router's `weight` that these had, and the relative squared `error`
            of the layer's outputs.
    """

    source: str
    target: str
    method: str
    format: str
    settings: dict[str, Any]
    layers: list[Layer] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)
    parameters: int = 0
    raw_bytes: int = 0
    stored_bytes: int = 0
    packed: tuple[int, int] | None = None
    seconds: float = 0.0
    before: Quality | None = None
    after: Quality | None = None
    parts: dict[str, int] = field(default_factory=dict)
    outer: dict[str, float] = field(default_factory=dict)
    predicted: dict[str, float] = field(default_factory=dict)
    tasks: list[TaskScore] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    outputs: list[OutputQuality] = field(default_factory=list)
    experts: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def bits_per_weight(self) -> float:
        """The bits per weight of the compressed matrices, with all side information."""
        weights = sum(layer.shape[0] * layer.shape[1] for layer in self.layers)
        return sum(layer.bits * layer.shape[0] * layer.shape[1] for layer in self.layers) / max(weights, 1)

    @property
    def sparsity(self) -> float:
        """The share of the compressed matrices' weights that are 0."""
        weights = sum(layer.shape[0] * layer.shape[1] for layer in self.layers)
        return sum(layer.sparsity * layer.shape[0] * layer.shape[1] for layer in self.layers) / max(weights, 1)

    @property
    def bytes_in_4_bits(self) -> int:
        """The bytes of the compressed matrices as dense 4-bit integers, with a scale of 16 bits for 128 weights."""
        return round(sum(layer.shape[0] * layer.shape[1] for layer in self.layers) * _DENSE_4_BITS / 8)

    @property
    def bits_per_parameter(self) -> float:
        """The bits per parameter of the whole stored checkpoint."""
        return 8 * self.stored_bytes / max(self.parameters, 1)

    @property
    def fallbacks(self) -> list[str]:
        """The deviations from the request."""
        return [*self.notes, *(f"{layer.name}: {note}" for layer in self.layers for note in layer.notes)]

    def _grouped(self) -> list[str]:
        """Return `fallbacks` with one line for equal notes of several matrices."""
        names: dict[str, list[str]] = {}
        for layer in self.layers:
            for note in layer.notes:
                names.setdefault(note, []).append(layer.name)
        lines = list(self.notes)
        for note, some in names.items():
            which = some[0] if len(some) == 1 else f"{len(some)} matrices, such as {some[0]}"
            lines.append(f"{which}: {note}")
        return lines

    def check(
        self,
        max_ppl_increase: float | None = None,
        max_kl: float | None = None,
        max_task_drop: float | None = None,
        max_error: float | None = None,
    ) -> None:
        """Check the quality against limits.

        Args:
            max_ppl_increase: largest rise of the perplexity, per cent.
            max_kl: largest mean KL divergence, nats.
            max_task_drop: largest fall of the accuracy on a task, points.
            max_error: largest relative error of an output, of models without a perplexity.

        Raises:
            QualityError: a limit is exceeded.
        """
        if self.before and self.after and max_ppl_increase is not None:
            rise = 100 * (self.after.perplexity / self.before.perplexity - 1)
            if not rise <= max_ppl_increase:
                raise QualityError(
                    f"{self.target}: perplexity rose by {rise:.1f} %, from {self.before.perplexity:.2f} to "
                    f"{self.after.perplexity:.2f}: the limit is {max_ppl_increase:g} %"
                )
        if self.after and self.after.kl_mean is not None and max_kl is not None and not self.after.kl_mean <= max_kl:
            raise QualityError(f"{self.target}: the mean KL divergence is {self.after.kl_mean:.4f}, above {max_kl:g}")
        check_outputs(self.target, self.outputs, max_kl, max_error)
        if max_task_drop is not None:
            check_drops(self.target, self.tasks, max_task_drop)

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Self:
        """Return a report from its JSON document."""
        values = {entry.name: document[entry.name] for entry in fields(cls) if entry.name in document}
        values["layers"] = [Layer.from_json(layer) for layer in document["layers"]]
        for name in ("before", "after"):
            values[name] = Quality(**document[name]) if document[name] else None
        values["outputs"] = [OutputQuality(**one) for one in document.get("outputs", ())]
        values["tasks"] = [TaskScore.from_json(score) for score in document.get("tasks", ())]
        values["packed"] = tuple(document["packed"]) if document["packed"] else None
        return cls(**values)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the report of a folder. Raises FormatError if the file is not a report, or damaged."""
        document = read_object(folder / NAME)
        try:
            return cls.from_json(document)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise FormatError(f"{folder / NAME}: not a report of squeeze, or damaged") from None

    def as_json(self) -> dict[str, Any]:
        derived = {"bits_per_weight": self.bits_per_weight, "bits_per_parameter": self.bits_per_parameter}
        derived |= {"sparsity": self.sparsity, "bytes_in_4_bits": self.bytes_in_4_bits}
        nested: dict[str, Any] = {"layers": [layer.as_json() for layer in self.layers]}
        nested |= {"before": self.before and self.before.as_json(), "after": self.after and self.after.as_json()}
        nested["outputs"] = [one.as_json() for one in self.outputs]
        tasks = [score.as_json() for score in self.tasks]
        return {**vars(self), **nested, **derived, "fallbacks": self.fallbacks, "tasks": tasks}

    def table(self) -> str:
        """Return layers, matrices left dense, and totals, for a terminal."""
        pruned = any(layer.pattern for layer in self.layers)
        lines = [_experts_line(name, layer) for name, layer in self.experts.items()]
        if self.layers or not self.experts:
            head = f"{'layer':<44} {'shape':>13} {'method':<9} {'bits':>6} {'error':>9}"
            lines.append(head + " zeros" * pruned)
        for layer in self.layers:
            shape, zeros = "x".join(map(str, layer.shape)), f" {layer.sparsity:5.3f}" if pruned else ""
            error = "-" if layer.error is None else f"{layer.error:.2e}"
            lines.append(f"{layer.name:<44} {shape:>13} {layer.method:<9} {layer.bits:6.3f} {error:>9}{zeros}")
        lines += [f"Note: {line}" for line in self._grouped()]
        lines += [f"Left as it was: {name}: {reason}" for name, reason in self.left.items()]
        return "\n".join([*lines, *(f"{name}: {value}" for name, value in self._totals())])

    def _totals(self) -> list[tuple[str, str]]:
        bits = f"{self.bits_per_weight:.3f} of the {len(self.layers)} compressed matrices"
        totals = [
            ("method", f"{self.method}, format {self.format}"),
            *([("bits per weight", bits)] if self.layers or not self.experts else []),
            *self._experts(),
            *self._sparsity(),
            ("bits per parameter", f"{self.bits_per_parameter:.3f} of the whole checkpoint"),
            ("bytes", f"{self.stored_bytes} of {self.raw_bytes} ({_percent(self.stored_bytes, self.raw_bytes)})"),
            *self._outer(),
            ("time", f"{self.seconds:.0f} s"),
        ]
        if self.predicted:
            rises = [f"{name} {value:.4f}" for name, value in self.predicted.items()]
            totals.append(("predicted rise of the loss", f"{', '.join(rises)} nats a token, in at most as many bytes"))
        if self.packed:
            raw, coded = self.packed
            totals.append(("packed", f"{coded} of {raw} bytes of all files ({_percent(coded, raw)})"))
        if self.after:
            before = f", before {self.before.perplexity:.3f}" if self.before else ""
            totals.append(("perplexity", f"{self.after.perplexity:.3f}{before} ({self.after.tokens} tokens)"))
            if self.after.kl_mean is not None and self.after.kl_p99 is not None:
                kl = f"mean {self.after.kl_mean:.4f}, 99th percentile {self.after.kl_p99:.4f} nats"
                totals.append(("KL from the original", kl))
                totals.append(("same most probable token", f"{100 * (self.after.top1_agreement or 0):.1f} %"))
        totals += [(one.name, str(one)) for one in self.outputs]
        return totals + [(score.task, str(score)) for score in self.tasks]

    def _experts(self) -> list[tuple[str, str]]:
        """Return a line on the experts that were kept."""
        if not self.experts:
            return []
        before = sum(layer["experts"] for layer in self.experts.values())
        kept = sum(len(layer["kept"]) for layer in self.experts.values())
        return [("experts", f"{kept} of {before} in {len(self.experts)} layers")]

    def _outer(self) -> list[tuple[str, str]]:
        """Return a line on the embedding and the head, if they are a part of the checkpoint that matters."""
        size = sum(self.parts.get(name, 0) for name in self.outer)
        if not self.stored_bytes or size < self.stored_bytes / 100:
            return []
        bits = " and ".join(dict.fromkeys(f"{bits:.3g}" for bits in self.outer.values()))
        share = _percent(size, self.stored_bytes)
        return [("embedding and head", f"{size} bytes ({share} of these), {bits} bits per weight")]

    def _sparsity(self) -> list[tuple[str, str]]:
        patterns = sorted({layer.pattern for layer in self.layers if layer.pattern})
        if not patterns:
            return []
        stored = round(self.bytes_in_4_bits * self.bits_per_weight / _DENSE_4_BITS)
        share = f"{stored} bytes, {_percent(stored, self.bytes_in_4_bits)} of {self.bytes_in_4_bits}"
        return [
            ("sparsity", f"{100 * self.sparsity:.2f} %, every group checked to hold to {', '.join(patterns)}"),
            ("against 4 bits dense", f"{share} (groups of 128)"),
        ]

    def card(self) -> str:
        """Return a section for the model card."""
        rows = "\n".join(f"| {name} | {value} |" for name, value in self._totals())
        notes = "".join(f"- {line}\n" for line in self._grouped())
        untouched = "".join(f"- {name}: left as it was, {reason}\n" for name, reason in self.left.items())
        settings = ", ".join(f"{name} {value}" for name, value in settings_in_words(self.settings).items())
        return f"## Compression\n\nBy squeeze: {settings}.\n\n| | |\n|---|---|\n{rows}\n\n{notes}{untouched}"

    def write(self, folder: Path) -> None:
        """Write the report, and its section of the model card, to a model's folder."""
        files.write_text(folder / NAME, json.dumps(self.as_json(), indent=1) + "\n")
        card = folder / "README.md"
        text = card.read_text("utf-8", _AS_THEY_ARE) if card.is_file() else f"# {Path(self.target).name}\n"
        own_text = text.partition("\n## Compression\n")[0].rstrip()
        files.write_text(card, f"{own_text}\n\n{self.card()}", _AS_THEY_ARE)


def settings_in_words(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return settings for people, without those that are None: yes and no, and lists without brackets."""
    names = {key.replace("_", " "): value for key, value in settings.items() if value is not None}
    return {name: _in_words(value) for name, value in names.items()}


def _in_words(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(_in_words, value)) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{name} {_in_words(one)}" for name, one in value.items()) or "none"
    return str(value)


def _experts_line(name: str, layer: dict[str, Any]) -> str:
    """Return the line of a layer of experts for a terminal."""
    kept = f"{len(layer['kept'])} of {layer['experts']} experts"
    weight = "" if layer.get("weight") is None else f", {100 * layer['weight']:.1f} % of the router's weight"
    error = "" if layer["error"] is None else f", error {layer['error']:.2e}"
    return f"{name:<44} {kept}{weight}{error}"


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / max(whole, 1):.1f} %"
