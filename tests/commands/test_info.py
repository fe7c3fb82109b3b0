"""`squeeze info`: facts as a table and as JSON."""

import json
import subprocess
import sys

from squeeze.errors import DeviceError
from squeeze.kernels import choices
from squeeze.lm.fused.operations import TORCH
from squeeze.numerics import tensors
from squeeze.recipes.measure import info
from tests.makers.command import run


def test_info_shows_the_same_facts_as_text_and_json():
    facts = json.loads(run("info", "--json").stdout)
    assert facts["squeeze"] == "0.1.0"
    assert facts["levels"] == "1, 2, 3, 4, 5, 6, 7, 8, 9"
    text = run("info").stdout
    assert f"processor:        {facts['processor']}\n" in text


def test_info_imports_nothing_heavy_and_asks_pytorch_only_if_the_user_does():
    code = (
        "import sys; from squeeze.cli import main; main(['info'], standalone_mode=False); "
        "print({'numba', 'numpy', 'torch'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("\nset()\n") and "core bytes" not in done.stdout
    facts = json.loads(run("info", "--full", "--json").stdout)
    assert facts["start_up_seconds"] > 0 and "exact_model_on" in facts


def test_what_runs_the_language_model_on_gpus(monkeypatch):
    """Three GPUs use kernels, torch and nothing."""

    def check(device):
        if device == "cuda:2":
            raise DeviceError(f"{device} does not compute as IEEE 754 says")

    operations = {"cuda:0": (TORCH._replace(name="fused kernels"), ""), "cuda:1": (TORCH, "no ptxas")}
    monkeypatch.setattr(info, "_gpus", lambda: ["A", "B", "C"])
    monkeypatch.setattr(tensors, "check", check)
    monkeypatch.setattr(tensors, "products_of", lambda device: None)
    monkeypatch.setattr(
        "squeeze.lm.fused.operations.choose_operations", lambda device, products, sizes: operations[device]
    )
    assert info.gather(full=True)["exact_model_on"] == [
        "cuda:0 by fused kernels",
        "cuda:1 by torch (no ptxas)",
        "cuda:2 by nothing (cuda:2 does not compute as IEEE 754 says)",
    ]


def test_what_is_fastest_on_a_gpu_is_told(monkeypatch):
    monkeypatch.setattr(info, "_gpus", lambda: ["A GPU", "A GPU"])
    monkeypatch.setattr(info, "_engines", list)
    monkeypatch.setattr(choices, "remembered", lambda device: {f"a shape on {device}": "dense"})
    assert info.gather(full=True)["fastest_kernels"] == ["a shape on A GPU: dense"]
