"""The quantised checkpoints that are read as floats, by the quant_method in config.json."""

from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.checkpoint.pretrained import explained
from squeeze.errors import FormatError, ModelError, printable
from squeeze.quant.formats.squeeze import METHOD
from squeeze.quant.sources.formats import awq, bitsandbytes, compressed_tensors, integers
from squeeze.quant.sources.narrow import fp8, mxfp4
from squeeze.quant.sources.source import Reader, Source

__all__ = ["READERS", "floats"]

READERS: dict[str, Reader] = {
    "fp8": fp8,
    "mxfp4": mxfp4,
    "gptq": integers,
    "awq": awq,
    "bitsandbytes": bitsandbytes,
    "compressed-tensors": compressed_tensors,
    METHOD: integers,
}


def floats(checkpoint: Checkpoint) -> Checkpoint:
    """Return a checkpoint whose quantised tensors are dequantised when they are loaded; one that is not quantised
    unchanged.

    Raises ModelError for an unknown quant_method, FormatError if tensors are missing or inconsistent.
    """
    described = checkpoint.config.get("quantization_config")
    if not described:
        return checkpoint
    method = str(described.get("quant_method")) if isinstance(described, dict) else ""
    reader = READERS.get(method)
    if reader is None:
        hint = ": `squeeze densify` or `squeeze unpack` makes floats of it" if method.startswith("squeeze") else ""
        known = "" if hint else f": expected one of {', '.join(READERS)}"
        raise ModelError(f"{checkpoint.folder}: unsupported quant_method {printable(repr(method))}{known or hint}")
    source = Source(checkpoint)
    with explained(checkpoint.folder, OSError):
        reader(source, described)
    if not source.views:
        raise FormatError(f"{checkpoint.folder}: config.json names {method}, but no tensor is stored so")
    return checkpoint.showing(source.views, source.source_names)
