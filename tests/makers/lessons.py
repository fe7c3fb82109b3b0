"""Write the small files and the tiny model that README and guides use."""

import json
from pathlib import Path

import numpy as np
import torch

from tests.makers import inputs, tiny_models, zoo, zoo_others

_RECIPE = """\
calibration: wiki.txt
samples: 8
steps:
  - prune: {pattern: "2:4"}
  - pack
"""


def write(folder: Path) -> None:
    """Write the files and folders that README and guides name: texts, samples, prompts, a recipe and models."""
    text = inputs.python_text(400_000)
    (folder / "report.txt").write_bytes(text[:6_000])
    (folder / "book.txt").write_bytes(text[6_000:12_000])
    (folder / "wiki.txt").write_bytes(text[12_000:])
    (folder / "big.log").write_text("".join(f"2026-01-01 00:00:{i % 60:02} GET /item/{i * i}\n" for i in range(300)))
    (folder / "prompts.txt").write_text("def main():\nimport os\n")
    (folder / "folder").mkdir()
    (folder / "folder" / "note.txt").write_bytes(text[:500])
    (folder / "samples").mkdir()
    for i in range(80):
        (folder / "samples" / f"{i}.json").write_text(_event(i))
    (folder / "event.json").write_text(_event(1_000))
    (folder / "recipe.yaml").write_text(_RECIPE)
    _model(folder / "my-model", seed=1)
    _model(folder / "my-model-tuned", seed=1, noise=1e-3)
    zoo.write(folder / "my-mixture", "qwen3_moe")
    zoo.tokenizer().save_pretrained(zoo_others.write(folder / "my-encoder", "BertModel"))
    samples = zoo_others.samples("WhisperForConditionalGeneration", 8)
    zoo_others.write(folder / "my-speech", "WhisperForConditionalGeneration")
    arrays = {name: np.concatenate([sample[name] for sample in samples]) for name in samples.samples[0]}
    np.savez(folder / "sounds.npz", **arrays)
    _diffusion(folder)


def _diffusion(folder: Path) -> None:
    from tests.makers import zoo_diffusion  # diffusers takes seconds to import

    zoo_diffusion.write(folder / "my-transformer", "DiTTransformer2DModel")
    samples = zoo_diffusion.samples("DiTTransformer2DModel", 8)
    arrays = {name: np.concatenate([sample[name] for sample in samples]) for name in samples.samples[0]}
    np.savez(folder / "latents.npz", **arrays)


def _event(number: int) -> str:
    path = f"/articles/{number * 7919 % 1000}"
    return json.dumps({"time": 1_760_000_000 + 13 * number, "status": 200, "path": path, "user": f"u{number % 17}"})


def _model(folder: Path, seed: int, noise: float = 0.0) -> None:
    """Write a Llama model of two blocks in bf16 with a tokenizer.

    Args:
        folder: new folder
        seed: seed of the weights
        noise: standard deviation of noise added to the weights
    """
    import transformers

    tokenizer = tiny_models.byte_level(space=False)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.LlamaConfig(
        **sizes, num_key_value_heads=1, vocab_size=tokenizer.get_vocab_size(), max_position_embeddings=2048
    )
    torch.manual_seed(seed)
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    for parameter in model.parameters():
        parameter.data += (noise * torch.randn(parameter.shape)).to(parameter.dtype)
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(tokenizer.to_str())
