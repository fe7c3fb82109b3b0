"""Round weights to every grid, and make tiny checkpoints of them for tests of formats and kernels."""

import json

import torch
from safetensors.torch import load_file, save_file

from squeeze.checkpoint.quantized import QuantizedTensor
from squeeze.quant.formats import FORMATS, Grid, QuantizationSpec
from squeeze.quant.methods import SCHEMES

SERVED = [name for name, scheme in SCHEMES.items() if scheme.format == "compressed-tensors"]
NF4 = torch.tensor(
    [
        *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
        *(-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725),
        *(0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
    ]
)
FP4 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])
TRITS = torch.tensor([[-1.0, 0.0, 1.0] * 3, [-1.0] * 3 + [0.0] * 3 + [1.0] * 3])  # of two planes, [2, 9]


def matrix(outputs, inputs, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn((outputs, inputs), generator=generator) * torch.rand((outputs, 1), generator=generator)


def rounded(weight, grid, dtype=torch.bfloat16):
    """Round `weight` [O, I] to nearest on a grid of integers or on NF4. Outlier columns are the two largest.

    Args:
        weight: weight [O, I]
        grid: description of the grid
        dtype: dtype of the scales
    """
    outputs, inputs = weight.shape
    size = grid.inputs(inputs)
    groups = -(-inputs // size)
    padded = torch.nn.functional.pad(weight, (0, groups * size - inputs)).view(outputs, groups, size)
    top = (1 << grid.bits) - 1
    zeros = codebook = None
    if grid.codebook == "nf4":
        codebook = NF4[None]
        scales = padded.abs().amax(-1).clamp(min=1e-5).to(dtype)
        codes = (padded[..., None] / scales.float()[..., None, None] - NF4).abs().argmin(-1)
    elif grid.symmetric:
        scales = (padded.abs().amax(-1).clamp(min=1e-5) * 2 / top).to(dtype)
        codes = torch.round(padded / scales.float()[..., None]) + (top + 1) // 2
    else:
        low, high = padded.amin(-1).clamp(max=0), padded.amax(-1).clamp(min=0)
        scales = ((high - low).clamp(min=1e-5) / top).to(dtype)
        zeros = torch.round(-low / scales.float()).clamp(0, top)
        codes = torch.round(padded / scales.float()[..., None]) + zeros[..., None]
        zeros = zeros.to(torch.uint8)
    codes = codes.clamp(0, top).to(torch.uint8).reshape(outputs, -1)[:, :inputs].contiguous()
    outliers = None
    if grid.outliers:
        columns = weight.abs().amax(0).topk(2).indices.sort().values
        outliers = columns, weight[:, columns].to(dtype)
    return QuantizedTensor(codes, scales[None], zeros, grid.bits, size, codebook, None, outliers)


def write(source, target, format, spec, endings=("_proj.weight", "lm_head.weight")):
    """Quantise the linear layers of a Hugging Face folder by rounding, and store them. Return the weights by name.

    Args:
        source: folder of the model
        target: new folder
        format: format of the checkpoint
        spec: description of the grid
        endings: endings of the names of tensors to quantise
    """
    target.mkdir()
    spec_config = FORMATS[format].config(spec)
    config = json.loads((source / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, "quantization_config": spec_config}))
    tensors, weights = {}, {}
    for shard in sorted(source.glob("*.safetensors")):
        for name, tensor in load_file(shard).items():
            module = name.removesuffix(".weight")
            if name.endswith(endings) and module not in spec.ignored:
                weights[module] = rounded(tensor.float(), spec.of(module), spec.dtype)
                tensors |= FORMATS[format].tensors(module, weights[module], spec.dtype)
            else:
                tensors[name] = tensor
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    return weights


def dense_model(source, weights, dtype):
    """Return the model in `source` with the dequantised weights.

    Args:
        source: folder of the model
        weights: quantised weights by name
        dtype: dtype of the model
    """
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=dtype).eval()
    for name, weight in weights.items():
        model.get_submodule(name).weight.data.copy_(weight.dequantize(dtype))
    return model


__all__ = ["FP4", "NF4", "TRITS", "Grid", "QuantizationSpec", "dense_model", "matrix", "rounded", "write"]


def others():
    """Return the grids that are not integer grids."""
    codes = torch.randint(0, 16, (6, 40), dtype=torch.uint8, generator=torch.Generator().manual_seed(3))
    return {
        "nf4": rounded(matrix(6, 40), Grid(4, 7, codebook="nf4")),
        "ternary": QuantizedTensor(codes % 9, torch.rand(2, 6, 2), None, 4, 20, TRITS),
        "nvfp4": QuantizedTensor(codes, torch.rand(1, 6, 3), None, 4, 16, FP4[None], torch.tensor(0.3)),
    }
