"""MoDeGPT's pairs: smaller shapes, the function kept at keep 1, budgets, errors."""

import pytest
import torch
from safetensors.torch import load_file

import squeeze
from squeeze.engine.calibration import InputStatistics
from squeeze.errors import ModelError, SqueezeError
from squeeze.integrations.load_model import load_model
from squeeze.recipes.plan import modegpt

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
TOKENS = torch.randint(0, 300, (12, 48), generator=torch.Generator().manual_seed(1))


def logits(folder):
    with torch.no_grad():
        return load_model(folder)(TOKENS).logits.float()


def distance(found, wanted):
    return float(((wanted - found).norm(dim=-1) / wanted.norm(dim=-1)).median())


def factorised(folders, kind, method, out, **options):
    return squeeze.factorize(folders(kind), method, calibration=TOKENS, out=out, **options)


@pytest.mark.parametrize("kind", ("llama", "qwen2", "qwen3", "mixtral"))
def test_every_pair_keeps_the_same_share(tmp_path, folders, kind):
    report = factorised(folders, kind, "modegpt", tmp_path / "out", keep=0.9)
    assert 16 * 0.88 < report.bits_per_weight <= 16 * 0.9
    assert {layer.method for layer in report.layers} == {"sliced"} and not report.fallbacks
    assert {layer.error for layer in report.layers} == {None}
    assert all(line.split()[4] == "-" for line in report.table().splitlines()[1 : 1 + len(report.layers)])
    wanted, found = logits(folders(kind)), logits(tmp_path / "out")
    assert distance(found, wanted) < 0.6
    kept = {name: tuple(tensor.shape) for name, tensor in load_file(tmp_path / "out" / "model.safetensors").items()}
    if kind == "qwen3":  # heads are normalised: queries and keys are left
        assert kept["model.layers.0.self_attn.q_proj.weight"] == (64, 64)
    else:
        assert kept["model.layers.0.self_attn.q_proj.core"] == (4 * 14, 64)  # 7 of 8 rotary pairs
    assert kept["model.layers.0.self_attn.v_proj.core"] == (2 * 14, 64)
    assert kept["model.layers.0.self_attn.o_proj.core"] == (64, 4 * 14)
    squeeze.densify(tmp_path / "out", tmp_path / "dense")
    assert distance(logits(tmp_path / "dense"), found) < 0.02


@pytest.mark.parametrize("kind", ("llama", "qwen2", "qwen3"))
def test_all_pairs_kept_keep_the_function(tmp_path, folders, kind):
    factorised(folders, kind, "modegpt", tmp_path / "out", keep=1.0)
    assert distance(logits(tmp_path / "out"), logits(folders(kind))) < 0.05  # masks cost every MLP a channel


def test_pairs_of_which_a_part_is_ignored_stay_whole(tmp_path, folders):
    report = factorised(
        folders, "llama", "modegpt", tmp_path / "out", keep=0.9, ignore=["layers.0.mlp.gate_proj", "k_proj"]
    )
    left = {layer.name for layer in report.layers if layer.method == "dense"}
    assert left == {f"model.layers.{i}.self_attn.{leaf}_proj" for i in (0, 1) for leaf in "qvo"} | {
        f"model.layers.0.mlp.{leaf}_proj" for leaf in ("up", "down")
    }


def test_ridge_scores_keep_the_channels_that_matter():
    generator = torch.Generator().manual_seed(3)
    x = torch.randn((300, 16), generator=generator) * torch.logspace(0, -1, 16)
    seen = InputStatistics()
    seen.add(x)
    seen.finish()
    tensors = {
        f"self_attn.{leaf}_proj.weight": torch.randn(shape, generator=generator)
        for leaf, shape in {"q": (32, 16), "k": (16, 16), "v": (16, 16), "o": (16, 32)}.items()
    }
    tensors["self_attn.k_proj.weight"][[2, 6]] *= 1e-3  # the pair 2 of the first key head of 8
    out = modegpt.attention(tensors, seen, 8, 0.75)
    q, k, v = (out[f"self_attn.{leaf}_proj.weight"] for leaf in "qkv")
    assert (k == 0).all(1).nonzero()[:, 0].tolist()[:2] == [2, 6] and int((k == 0).all(1).sum()) == 4
    assert int((q == 0).all(1).sum()) == 8 and (q[[2, 6, 10, 14]] == 0).all()
    assert int((v == 0).all(1).sum()) == 4

    def through(found):
        v, o = found["self_attn.v_proj.weight"].view(2, 8, 16), found["self_attn.o_proj.weight"].view(16, 2, 2, 8)
        return torch.einsum("oghs,gsi,ti->tgho", o, v, x)

    lost = (through(out) - through(tensors)).square().sum((0, 2, 3))  # by key head
    for i in range(2):
        whole = through(tensors)[:, i].transpose(0, 1).flatten(0, 1)
        heads = torch.cat([whole[:300], whole[300:]], 1)  # both query heads of the key head
        best = torch.linalg.svdvals(heads)[6:].square().sum()
        assert float(lost[i]) == pytest.approx(float(best), rel=0.01)


def test_experts_without_statistics_keep_their_largest_channels():
    matrices = {name: torch.ones(shape) for name, shape in {"gate": (40, 8), "up": (40, 8), "down": (8, 40)}.items()}
    matrices["up"][3] = 0.1
    found, note = modegpt.channels(matrices, InputStatistics(count=7), 1 - 1 / 40)
    assert note == "only 7 calibration tokens reached its 40 channels: the largest are kept"
    assert (found["gate"][3] == 0).all() and (found["down"][:, 3] == 0).all()


def test_refuses_other_architectures_and_invalid_shares(tmp_path, folders):
    with pytest.raises(
        ModelError, match=r"known pairs of matrices \(llama, mistral, qwen2, qwen3, mixtral, qwen2_moe\), got 'gpt2'"
    ):
        factorised(folders, "gpt2", "modegpt", tmp_path / "no")
    with pytest.raises(SqueezeError, match=r"keep must be above 0 and at most 1, got 1\.5"):
        factorised(folders, "llama", "modegpt", tmp_path / "no", keep=1.5)
    with pytest.raises(SqueezeError, match="`target_bytes` needs the method plan"):
        factorised(folders, "llama", "modegpt", tmp_path / "no", target_bytes=10**9)
    assert not (tmp_path / "no").exists()
