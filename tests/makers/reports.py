"""Reports as commands print them with --json, of an invented model of 30 blocks."""

from typing import Any

import numpy as np

from squeeze.engine.solving import BINS

MATRICES = {
    "self_attn.q_proj": (576, 576),
    "self_attn.k_proj": (192, 576),
    "self_attn.v_proj": (192, 576),
    "self_attn.o_proj": (576, 576),
    "mlp.gate_proj": (1536, 576),
    "mlp.up_proj": (1536, 576),
    "mlp.down_proj": (576, 1536),
}


def model(name: str = "small-4bit", bits: int = 4, blocks: int = 30, seed: int = 0) -> dict[str, Any]:
    """Return a report of `quantize`.

    Args:
        name: name of the model
        bits: bits of its codes
        blocks: number of blocks
        seed: seed of the figures
    """
    draw = np.random.default_rng(seed)
    layers = [
        _layer(f"model.layers.{block}.{matrix}", shape, bits, draw)
        for block in range(blocks)
        for matrix, shape in MATRICES.items()
    ]
    layers[5]["notes"] = ["only 3 calibration tokens reached its 576 inputs: rtn instead"]
    parts = {one["name"]: round(one["bits"] * one["shape"][0] * one["shape"][1] / 8) for one in layers}
    parts |= {f"model.layers.{block}.input_layernorm": 1152 for block in range(blocks)}
    parts |= {"model.embed_tokens": 49152 * 576 * 2, "model.norm": 1152}
    stored, ratio = sum(parts.values()), 1 + 0.4 / 2**bits
    intervals = {"perplexity": [17.1 * ratio, 19.4 * ratio], "ratio": [ratio - 0.002, ratio + 0.002]}
    after = {
        "perplexity": 18.2 * ratio,
        "tokens": 8184,
        "tokens_per_second": 900.0,
        "kl_mean": 0.5 / 2**bits,
        "kl_p99": 0.2,
        "top1_agreement": 0.93,
        "ratio": ratio,
        "intervals": intervals | {"kl_mean": [0.45 / 2**bits, 0.55 / 2**bits], "top1_agreement": [0.92, 0.94]},
    }
    before = {
        "perplexity": 18.2,
        "tokens": 8184,
        "tokens_per_second": 1000.0,
        "intervals": {"perplexity": [17.1, 19.4]},
    }
    return {
        "source": "small",
        "target": f"out/{name}",
        "method": "gptq",
        "format": "squeeze",
        "settings": {"bits": bits, "group_size": 64},
        "layers": layers,
        "left": {"lm_head": "outside the blocks"},
        "parameters": 134515008,
        "raw_bytes": 269030016,
        "stored_bytes": stored,
        "packed": None,
        "seconds": 93.0 + bits,
        "before": before,
        "after": after,
        "parts": parts,
        "predicted": {},
        "bits_per_weight": bits + 0.25,
        "bits_per_parameter": 8 * stored / 134515008,
        "sparsity": 0.01,
        "bytes_in_4_bits": 55000000,
        "fallbacks": [f"{layers[5]['name']}: {layers[5]['notes'][0]}"],
    }


def _layer(name: str, shape: tuple[int, int], bits: int, draw: np.random.Generator) -> dict[str, Any]:
    weights = draw.normal(0, 0.05, 20_000)
    edges = np.linspace(-0.2, 0.2, BINS + 1)
    rounded = np.round(weights / 0.04 * bits / 4) * 0.04 * 4 / bits
    counts = {
        who: np.histogram(np.clip(values[values != 0], -0.19999, 0.19999), edges)[0].tolist()
        for who, values in (("before", weights), ("after", rounded))
    }
    return {
        "name": name,
        "shape": list(shape),
        "method": "gptq",
        "bits": bits + 0.25,
        "error": float(4.0**-bits * np.exp(draw.normal(0, 0.8))),
        "tokens": 32768,
        "notes": [],
        "sparsity": float(draw.uniform(0, 0.02)),
        "pattern": None,
        "rank": None,
        "seconds": round(float(shape[0] * shape[1] / 1e6 * draw.uniform(0.8, 1.2)), 3),
        "histogram": {"bound": 0.2, **counts, "zeros": [0, int((rounded == 0).sum())]},
    }


def files() -> list[dict[str, Any]]:
    """Return a report of `bench`: two files with four tools, of which one fails."""
    sizes = {"squeeze -1": (0.30, 0.5), "squeeze -6": (0.20, 60.0), "xz -9e": (0.28, 2.0)}
    rows = [
        {
            "file": file,
            "tool": tool,
            "raw_size": raw,
            "coded_size": int(raw * share),
            "compress_seconds": seconds * raw / 1e6,
            "decompress_seconds": seconds * raw / 2e6,
            "error": None,
        }
        for file, raw in (("a/text.txt", 1_000_000), ("a/table.csv", 500_000))
        for tool, (share, seconds) in sizes.items()
    ]
    zeros = {"raw_size": 1_000_000, "coded_size": 0, "compress_seconds": 0.0, "decompress_seconds": 0.0}
    return [*rows, {"file": "a/text.txt", "tool": "zpaq -m5", **zeros, "error": "the round trip changed the bytes"}]


def caches() -> list[dict[str, Any]]:
    """Return a report of `kv-eval`: three policies with two contexts."""
    return [
        {
            "policy": policy,
            "context": context,
            "bits": bits,
            "distance": {
                "perplexity": 18.0 * (1 + rise),
                "kl": rise / 3,
                "intervals": {"kl": [rise / 4, rise / 2], "percent": [90 * rise, 110 * rise]},
            },
            "baseline": {"perplexity": 18.0, "kl": 0.0, "intervals": {}},
            "way": "one pass",
            "cost": {"tokens": context, "bytes": context * 1000, "peak": context * 1500, "seconds": 0.02},
            "passkeys": None,
            "percent": 100 * rise,
        }
        for context in (512, 1024)
        for policy, bits, rise in (("full precision", None, 0.0), ("kivi:4", 4.5, 0.01), ("kivi:2", 2.5, 0.09))
    ]


def tensors() -> dict[str, Any]:
    """Return a report of `inspect`."""
    entries = [
        {
            "name": f"model.layers.{block}.{matrix}.weight",
            "dtype": "BF16",
            "shape": list(shape),
            "coding": "rans",
            "values": shape[0] * shape[1],
            "raw": 2 * shape[0] * shape[1],
            "coded": int(1.33 * shape[0] * shape[1]),
            "bound": 1.32 * shape[0] * shape[1],
            "fields": {"exponent": 2.6, "sign and mantissa": 7.95},
            "gap": 0.75,
        }
        for block in range(4)
        for matrix, shape in MATRICES.items()
    ]
    return {"command": "inspect", "input": "small", "tensors": entries, "totals": []}
