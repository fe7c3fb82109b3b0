"""SliceGPT (Ashkboos et al. 2024, arXiv 2401.15024) with one rotation: a model with a narrower residual stream.

RMSNorm gives the same whatever rotation its input is in, once its factors are in the matrices behind it. So the stream
is turned to its principal directions, the least of them are left out, and every matrix that reads or writes it gets
smaller; what is written is a plain checkpoint of a smaller hidden size. The paper has a rotation for each block, and a
matrix [H', H'] on every shortcut to get from one to the next: more values in a small model than slicing saves, and no
architecture that transformers knows. Here one rotation, of the stream before all norms together, serves all.
"""

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import nn

from squeeze.checkpoint.architectures import EMBEDDING, HEAD, LAST_NORM, architecture_of
from squeeze.checkpoint.checkpoint import Checkpoint, Parts
from squeeze.checkpoint.other_files import copy_other_files
from squeeze.engine.forward import forward
from squeeze.engine.network import Network
from squeeze.engine.pipeline import Progress
from squeeze.engine.report import Layer, Report
from squeeze.errors import ModelError, SqueezeError
from squeeze.packing import folder
from squeeze.quant.sources import floats
from squeeze.system.stamps import digest, stamps
from squeeze.system.work import discards, work_folder

__all__ = ["Stream", "observed", "slicegpt"]

_ATTENTION = ("q_proj", "k_proj", "v_proj")
_READING = (*_ATTENTION, "gate_proj", "up_proj", "gate", "shared_expert_gate")
_WRITING = ("o_proj", "down_proj")
_ROWS = 1024  # of the vocabulary, in float64


@dataclass
class Stream:
    """The residual stream in front of every norm, divided by its root mean square. folder: of files of its moments,
    float64 [H, H], by the norm's name; factors: the norms' own, float64 [H]; pooled: the sum of all moments; tokens:
    seen."""

    folder: Path
    tokens: int
    factors: dict[str, torch.Tensor] = field(default_factory=dict)
    pooled: torch.Tensor | None = None
    _last: tuple[str, torch.Tensor] | None = None

    def add(self, norm: str, moments: torch.Tensor, factors: torch.Tensor) -> None:
        """Another norm's."""
        moments = moments.cpu()
        torch.save(moments, self.folder / f"{norm}.moments")
        self.pooled = moments.clone() if self.pooled is None else self.pooled.add_(moments)
        self.factors[norm] = factors.detach().double().cpu()

    def moments(self, norm: str) -> torch.Tensor:
        """float64 [H, H]; the last ones asked for are in memory."""
        if self._last is None or self._last[0] != norm:
            self._last = norm, torch.load(self.folder / f"{norm}.moments", weights_only=True)
        return self._last[1]

    def directions(self, width: int) -> torch.Tensor:
        """float64 [H, H']: the principal directions before all norms together."""
        assert self.pooled is not None
        vectors: torch.Tensor = torch.linalg.eigh(self.pooled / len(self.factors)).eigenvectors
        return vectors.flip(1)[:, :width]

    def reader(self, norm: str, directions: torch.Tensor) -> torch.Tensor:
        """float64 [H, H']: what a matrix [O, H] behind a norm is multiplied by to read what RMSNorm without factors
        makes of the directions kept [H, H']: it divides by their own root mean square, larger by (H / H')^1/2."""
        larger: float = (directions.shape[0] / directions.shape[1]) ** 0.5
        return self.factors[norm][:, None] * directions * larger


def observed(network: Network, tokens: torch.Tensor, folder: Path) -> Stream:
    """The stream of a network when sequences of tokens [N, L] run. folder: for its files."""
    stream = Stream(folder, tokens.numel())
    last = network.load(LAST_NORM)
    ended, factors = _Moments(last, stream.tokens), last.get_parameter("weight")
    network.release(LAST_NORM)
    for block, module, run in forward(network, tokens, ended.add):
        norms = {f"{block}.{leaf}": norm for leaf, norm in module.named_modules() if leaf.endswith("layernorm")}
        found = {name: _Moments(norm, stream.tokens) for name, norm in norms.items()}
        hooks = [norm.register_forward_pre_hook(found[name].observe) for name, norm in norms.items()]
        run()
        for hook in hooks:
            hook.remove()
        for name, norm in norms.items():
            stream.add(name, found[name].moments, norm.get_parameter("weight"))
    stream.add(LAST_NORM, ended.moments, factors)
    return stream


class _Moments:
    """Those of what a norm is given."""

    def __init__(self, norm: nn.Module, tokens: int) -> None:
        weight = norm.get_parameter("weight")
        self.moments = weight.new_zeros(len(weight), len(weight), dtype=torch.float64)
        self.epsilon, self.tokens = float(norm.variance_epsilon), tokens  # type: ignore[arg-type]

    def observe(self, module: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        self.add(args[0])

    def add(self, x: torch.Tensor) -> None:
        x = x.reshape(-1, x.shape[-1]).float()
        x = x * (x.square().mean(1, keepdim=True) + self.epsilon).rsqrt()
        self.moments.add_(x.T @ x, alpha=1 / self.tokens)


def slicegpt(
    source: Path | str,
    target: Path | str,
    tokens: torch.Tensor,
    keep: float,
    *,
    settings: Mapping[str, Any] | None = None,
    resume: bool = False,
    overwrite: bool = False,
    device: str = "cpu",
    progress: Progress | None = None,
) -> Report:
    """Write a checkpoint whose hidden size is at most a share `keep` of the source's, a multiple of the number of
    heads; the head, if it was the embedding, is stored apart. tokens: calibration sequences [N, L].

    One block is in memory, with 8 H^2 bytes for each of its norms; those of the others lie in files. Raises
    ModelError for architectures without RMSNorm, SqueezeError where `keep` leaves no width.
    """
    from squeeze.integrations.opening import check_opens  # transformers takes seconds to import

    started, source, target = time.perf_counter(), Path(source), Path(target)
    checkpoint = floats(Checkpoint.open(source))
    folder.check_target(source, target, overwrite)
    network = _network(checkpoint)
    network.check(tokens)
    width = _width(checkpoint.config, keep)
    asked = dict(settings or {})
    task = {"source": stamps(source), "settings": asked, "width": width, "tokens": digest(tokens)}
    with work_folder(target, "slicing", task, discards(resume, overwrite)) as work:
        stream = observed(Network(network.checkpoint, device), tokens, work)
        report = Report(str(source), str(target), "slicegpt", "dense", asked)
        parts = Parts(work)
        names: list[str] = []
        for name, tensor, layer in _sliced(network, stream, stream.directions(width)):
            if progress:
                progress(name, len(names), len(network.sources))
            names.append(str(len(names)))
            parts.put(names[-1], {name: tensor})
            report.layers += [layer] if layer else []
        content = work / folder.CONTENT
        content.mkdir(exist_ok=True)
        report.stored_bytes = parts.join(names, content)
        report.raw_bytes = checkpoint.bytes_of(checkpoint.files)
        report.parameters = sum(prod(checkpoint.info(name).shape) for name in checkpoint.files)
        report.notes += _write_rest(source, content, checkpoint, width)
        report.seconds = round(time.perf_counter() - started, 3)
        report.write(content)
        check_opens(content, checkpoint, target)
        folder.move_into_place(content, target, overwrite)
    return report


def _network(checkpoint: Checkpoint) -> Network:
    message = f"{checkpoint.folder}: the stream of architecture {{kind}} cannot be sliced; that of {{known}} can"
    architecture_of(checkpoint.config, message)
    return Network(checkpoint)


def _width(config: Mapping[str, Any], keep: float) -> int:
    heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
    width = heads * int(keep * hidden / heads + 1e-9)
    if not 0 < width <= hidden:
        raise SqueezeError(f"a share of {keep:g} of {hidden} dimensions: from {heads / hidden:.3g} to 1 can be kept")
    return width


def _sliced(
    network: Network, stream: Stream, directions: torch.Tensor
) -> Iterator[tuple[str, torch.Tensor, Layer | None]]:
    """The tensors of the new checkpoint by their names, with what the report says of the blocks' matrices."""
    checkpoint, sources = network.checkpoint, dict(network.sources)
    sources.setdefault(f"{HEAD}.weight", sources[f"{EMBEDDING}.weight"])
    blocks = tuple(f"{block}." for block in network.blocks)
    for name, source in sources.items():
        tensor = checkpoint.load([source])[source]
        at_once = _ROWS if name.startswith((EMBEDDING, HEAD)) else len(tensor)
        parts = (_transformed(name, rows.double(), stream, directions) for rows in tensor.split(at_once))
        sliced = torch.cat([part.to(tensor.dtype) for part in parts])
        layer, stored = None, source if name.removesuffix(".weight") != HEAD else name
        if name.startswith(blocks) and tensor.ndim == 2:
            lost, bits = _lost(name, tensor, stream, directions), 8 * sliced.nbytes / tensor.numel()
            shape = (tensor.shape[0], tensor.shape[1])
            layer = Layer(stored.removesuffix(".weight"), shape, "slicegpt", bits, lost, stream.tokens)
        yield stored, sliced, layer


def _transformed(name: str, tensor: torch.Tensor, stream: Stream, directions: torch.Tensor) -> torch.Tensor:
    """A parameter of the network as the sliced one has it. Raises ModelError where its part is not known."""
    module, _, kind = name.rpartition(".")
    leaf = module.rpartition(".")[2]
    if module in stream.factors:
        return torch.ones(directions.shape[1], dtype=tensor.dtype)
    if module == EMBEDDING:
        return tensor @ directions
    if kind == "weight" and (norm := _norm_before(module, leaf)):
        return tensor @ stream.reader(norm, directions)
    if leaf in _WRITING:
        return directions.T @ tensor
    if tensor.ndim == 1:  # biases of what reads the stream, norms within heads
        return tensor
    raise ModelError(f"{name}: a part of the network that slicing does not know")


def _norm_before(module: str, leaf: str) -> str | None:
    """The norm whose output a module reads, if it does."""
    if module == HEAD:
        return LAST_NORM
    if leaf not in _READING:
        return None
    block = ".".join(module.split(".")[:3])
    return f"{block}.{'input_layernorm' if leaf in _ATTENTION else 'post_attention_layernorm'}"


def _lost(name: str, tensor: torch.Tensor, stream: Stream, directions: torch.Tensor) -> float:
    """The share of a matrix's mean squared output that is lost; of its own squares where it writes the stream."""
    module, wide = name.rpartition(".")[0], tensor.double()
    norm = _norm_before(module, module.rpartition(".")[2])
    if norm is None:
        return 1 - float((directions.T @ wide).square().sum() / wide.square().sum())
    moments, behind = stream.moments(norm), wide * stream.factors[norm]
    change = behind - behind @ directions @ directions.T
    return float(((change @ moments) * change).sum() / ((behind @ moments) * behind).sum())


def _write_rest(source: Path, content: Path, checkpoint: Checkpoint, width: int) -> tuple[str, ...]:
    """Write all but the weights; what was left out is returned."""
    config = dict(checkpoint.config)
    hidden = int(config["hidden_size"])
    config["head_dim"] = int(config.get("head_dim") or hidden // int(config["num_attention_heads"]))
    config["rms_norm_eps"] = float(config.get("rms_norm_eps", 1e-6)) * hidden / width
    config |= {"hidden_size": width, "tie_word_embeddings": False}
    notes = copy_other_files(source, content)
    (content / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    return notes
