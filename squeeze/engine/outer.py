"""Compression of the two matrices outside the blocks: the input embedding, before the walk, and the output head, after
it.

The blocks see the compressed embedding. The head is calibrated on what the compressed blocks give it. A matrix that is
both is compressed once, as the embedding.
"""

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import nn

from squeeze.engine.block import BlockJob, CompressedMatrix
from squeeze.engine.calibration import InputStatistics
from squeeze.engine.gradients import head_of as ending
from squeeze.engine.inputs import Inputs
from squeeze.engine.method import Method
from squeeze.engine.network import Network, is_linear
from squeeze.engine.sensitivity import tied_statistics
from squeeze.engine.sharding import Shard
from squeeze.engine.solving import Matrix, compress_matrices
from squeeze.errors import ModelError

__all__ = ["compressed_embedding", "compressed_head", "embedding_of", "head_of", "is_tied", "last_inputs"]


def embedding_of(network: Network) -> str | None:
    """Return the name of the module that looks up the input embeddings; None if the model has none of its own."""
    if not hasattr(network.model, "get_input_embeddings"):  # of diffusers
        return None
    try:
        table = network.model.get_input_embeddings()
    except NotImplementedError:
        return None
    return _name_of(network, table) if isinstance(table, nn.Embedding) else None


def head_of(network: Network) -> str | None:
    """Return the name of the linear module that makes the logits; None if the model has none."""
    head = getattr(network.model, "get_output_embeddings", lambda: None)()
    return _name_of(network, head) if head is not None and is_linear(head) else None


def _name_of(network: Network, module: nn.Module) -> str | None:
    return next((name for name, other in network.model.named_modules() if other is module), None)


def is_tied(network: Network) -> bool:
    """Return whether the head multiplies by the matrix of the embedding.

    Raises ModelError if config.json says so, and the checkpoint stores two matrices that differ.
    """
    table, head = embedding_of(network), head_of(network)
    tied = getattr(network.model, "all_tied_weights_keys", None) or {}
    if table is None or head is None or tied.get(f"{head}.weight") != f"{table}.weight":
        return False
    if f"{head}.weight" in network.sources and network.checkpoint.has_own_head:
        raise ModelError(
            f"{network.checkpoint.folder}: config.json ties the output head to the embedding, and they differ: set "
            '"tie_word_embeddings" to false'
        )
    return True


def compressed_embedding(
    job: BlockJob, outer: Mapping[str, Method], tokens: Inputs | None
) -> dict[str, CompressedMatrix]:
    """Compress the embedding if `outer` has its method, and let the network load its new values.

    Args:
        job: the job.
        outer: methods of matrices outside the blocks, by the network's name.
        tokens: calibration sequences [N, L], for an embedding that is the head of a causal language model as well;
            or samples, or None.

    Returns:
        The result by module, nothing if the embedding stays as it is.
    """
    network, name = job.network, embedding_of(job.network)
    if name is None or name not in outer:
        return {}
    statistics, head = InputStatistics(), head_of(network)
    if network.is_causal and head is not None and isinstance(tokens, torch.Tensor) and outer[name].needs_hessian:
        statistics = tied_statistics(network, head, tokens)
    done = _compressed(job, name, outer[name], statistics)
    matrix = _matrix(job, name, outer[name])
    values = done[name].result.tensor.dequantize(torch.float32).to(matrix.dtype)
    network.changed[network.sources[f"{name}.weight"]] = values
    return done


def compressed_head(
    job: BlockJob, outer: Mapping[str, Method], tokens: Inputs | None, shards: Iterable[Shard]
) -> dict[str, CompressedMatrix]:
    """Compress the head if `outer` has its method.

    Args:
        job: the job.
        outer: methods of matrices outside the blocks, by the network's name.
        tokens: calibration sequences [N, L], or None; samples give no statistics of a head.
        shards: files with the states after the last block.

    Returns:
        The result by module, nothing if the head stays as it is.
    """
    name = head_of(job.network)
    if name is None or name not in outer:
        return {}
    statistics = InputStatistics(bound=job.bound)
    if job.network.is_causal and isinstance(tokens, torch.Tensor) and outer[name].needs_hessian:
        for shard in shards:
            _add(statistics, job.network, name, tokens, shard)
        statistics.finish()
    return _compressed(job, name, outer[name], statistics, job.correction)


def _add(statistics: InputStatistics, network: Network, name: str, tokens: torch.Tensor, shard: Shard) -> None:
    """Add the inputs of the head on one shard, and those in the original of one sequence in `every`."""
    numbers = range(shard.first, shard.first + shard.inputs.count)
    originals: dict[int, torch.Tensor] = {}
    if shard.original:
        known = [number for number in numbers if number % shard.every == 0]
        states = shard.original[0].read(network.device)
        originals = dict(zip(known, last_inputs(network, name, tokens, states), strict=True))
    inputs = last_inputs(network, name, tokens, shard.inputs.read(network.device))
    for number, x in zip(numbers, inputs, strict=True):
        statistics.add(x, originals.get(number))


@torch.no_grad()
def last_inputs(
    network: Network, name: str, tokens: torch.Tensor, states: Iterable[torch.Tensor]
) -> Iterator[torch.Tensor]:
    """Yield the inputs [L, I] of a linear module behind the blocks, which does not multiply.

    Args:
        network: the network.
        name: of the module.
        tokens: any sequences of the same length [N, L].
        states: states [L, W] after the last block.
    """
    module, call, seen = network.module(name), network.calls(tokens)[-1], []

    def observe(x: torch.Tensor) -> torch.Tensor:
        seen.append(x)
        return x

    module.forward = observe  # type: ignore[method-assign]
    try:
        with ending(network, tokens) as run:
            for state in states:
                run(call.hidden(state))
                yield seen.pop().reshape(len(state), -1).float()
    finally:
        del module.__dict__["forward"]


def _compressed(
    job: BlockJob, name: str, method: Method, statistics: InputStatistics, correction: float = 0.0
) -> dict[str, CompressedMatrix]:
    network = job.network
    network.load(name)
    try:
        return compress_matrices(network.model, [_matrix(job, name, method)], statistics, correction)
    finally:
        network.release(name)


def _matrix(job: BlockJob, name: str, method: Method) -> Matrix:
    network = job.network
    stored = network.checkpoint.info(network.sources[f"{name}.weight"]).dtype
    dtype = {"BF16": torch.bfloat16, "F16": torch.float16}.get(stored, torch.float32)
    return Matrix(name, name, network.stored_name(name), dtype, method)
