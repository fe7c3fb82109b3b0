"""Matrices on one basis: no worse than the optimum of the stack, stored once, and one product for all that read it."""

import pytest
import torch
from safetensors.torch import load_file

import squeeze
from squeeze.errors import FormatError
from squeeze.factor.lowrank import root
from squeeze.factor.shared import SharedSVD
from squeeze.factor.stored import FactorLinear, join, read_form
from squeeze.integrations.load_model import load_model
from squeeze.recipes.train.distil import Training
from squeeze.recipes.train.retrain import heal

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

TOKENS = torch.randint(0, 300, (12, 48), generator=torch.Generator().manual_seed(1))
SEED = torch.Generator().manual_seed(5)


def weights():
    return {f"a.{name}": torch.randn((rows, 20), generator=SEED) for name, rows in {"q": 24, "k": 8, "v": 9}.items()}


def moments():
    x = torch.randn((200, 20), generator=SEED) * torch.logspace(0, -1, 20)
    return x.T @ x / 200


@pytest.mark.parametrize("weighted", (False, True))
def test_the_stack_gets_its_optimum(weighted):
    given, hessian = weights(), moments()
    method = SharedSVD(rank=7, outputs=torch.eye(41) if weighted else None)
    found = method.compress_together(given, hessian)
    inner = root(hessian, 1e-4)[0]
    scales = [1.0 if weighted else float(((w @ hessian) * w).sum()) ** -0.5 for w in given.values()]
    stack = torch.cat([scale * w.double() for scale, w in zip(scales, given.values(), strict=True)])
    best = torch.linalg.svdvals(stack @ inner)[7:].square().sum()
    changes = [
        scale * (w - found[name].tensor.dequantize()).double()
        for scale, (name, w) in zip(scales, given.items(), strict=True)
    ]
    assert float((torch.cat(changes) @ inner).square().sum()) == pytest.approx(float(best), rel=1e-3)
    values = sum(
        tensor.numel()
        for one in found.values()
        for tensor in one.tensor.tensors().values()
        if tensor.dtype == torch.float32
    )
    assert values == 7 * (41 + 20 - 7)


def test_layers_share_the_product_with_the_basis(monkeypatch):
    from squeeze.factor import stored

    found = SharedSVD(rank=7).compress_together(weights(), moments())
    model = torch.nn.Module()
    model.a = torch.nn.ModuleDict({name[2:]: FactorLinear.of(one.tensor) for name, one in found.items()})
    for name in ("k", "v"):
        assert "base" not in model.a[name].leaves
    join(model)
    calls, product = [], stored.product
    monkeypatch.setattr(stored, "product", lambda *given: calls.append(1) or product(*given))
    x, other = torch.randn((2, 3, 20), generator=SEED)
    for _ in range(2):
        for name, layer in model.a.items():
            assert torch.allclose(layer(x), x @ found[f"a.{name}"].tensor.dequantize().T, atol=1e-4)
    assert len(calls) == 2 and model.a["q"]._basis is None
    assert torch.allclose(model.a["k"](other), other @ found["a.k"].tensor.dequantize().T, atol=1e-4)
    model.a["q"].base = torch.nn.Parameter(2 * model.a["q"].base.data)
    assert torch.allclose(model.a["v"](x), 2 * x @ found["a.v"].tensor.dequantize().T, atol=1e-3)


@pytest.mark.parametrize("kind", ("llama", "mixtral", "gpt2"))
def test_folders_load_and_densify(tmp_path, folders, kind):
    report = squeeze.factorize(folders(kind), "shared", keep=0.8, calibration=TOKENS, out=tmp_path / "out")
    assert report.bits_per_weight <= 16 * 0.8 + 0.1 and not report.fallbacks
    model, original = load_model(tmp_path / "out"), load_model(folders(kind))
    squeeze.densify(tmp_path / "out", tmp_path / "dense")
    with torch.no_grad():
        wanted, found, dense = (m(TOKENS).logits for m in (original, model, load_model(tmp_path / "dense")))
    for a, b, most in ((found, wanted, 0.6), (dense, found, 0.02)):
        assert float(((a - b).norm(dim=-1) / b.norm(dim=-1)).median()) < most
    followers = [layer for layer in model.modules() if isinstance(layer, FactorLinear) and "base_of" in layer.leaves]
    assert len(followers) == {"llama": 2 * 3, "mixtral": 2 * 2, "gpt2": 0}[kind]


def test_a_basis_is_healed_once_for_all_that_read_it(tmp_path, folders):
    squeeze.factorize(folders("llama"), "shared", keep=0.5, calibration=TOKENS, out=tmp_path / "out")
    path = tmp_path / "out" / "model.safetensors"
    before = load_file(path)
    found = heal(folders("llama"), tmp_path / "out", TOKENS, Training(minutes=1, steps=30, rate=3e-3, batch=2))
    after = load_file(path)
    assert sum(found.losses[-5:]) < sum(found.losses[:5])
    assert sorted(after) == sorted(before) and "model.layers.0.self_attn.k_proj.base" not in after
    for leaf in ("q_proj.base", "k_proj.coefficients"):
        assert not torch.equal(before[f"model.layers.0.self_attn.{leaf}"], after[f"model.layers.0.self_attn.{leaf}"])


def test_a_plan_may_put_queries_and_keys_on_one_basis(tmp_path, folders):
    import json

    report = squeeze.factorize(folders("llama"), keep=0.4, calibration=TOKENS, out=tmp_path / "out")
    plan = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]["plan"]
    shared = [name for name, row in plan.items() if row["family"] == "shared low rank"]
    assert shared and all(name.endswith(".scores") for name in shared)
    assert sum(layer.method == "shared" for layer in report.layers) == 2 * len(shared)
    assert report.bits_per_weight <= 16 * 0.4
    with torch.no_grad():
        assert load_model(tmp_path / "out")(TOKENS).logits.isfinite().all()


def test_forms_that_do_not_fit_together():
    found = SharedSVD(rank=7).compress_together(weights(), moments())
    whole = found["a.q"].tensor.tensors()
    wrong = {
        "start": (torch.zeros(0, dtype=torch.int32), "base, coefficients and start are of different ranks"),
        "coefficients": (whole["coefficients"][:, 1:], "base, coefficients and start are of different ranks"),
        "pivots": (torch.full_like(whole["pivots"], 255), "its rows are outside the base"),
    }
    for leaf, (tensor, message) in wrong.items():
        with pytest.raises(FormatError, match=message):
            read_form("m", {**whole, leaf: tensor})
    with pytest.raises(FormatError, match="coefficients, pivots, start are not a known"):
        read_form("m", {name: whole[name] for name in ("pivots", "coefficients", "start")})
    with pytest.raises(FormatError, match="the number of pivots is not that of its rows"):
        read_form("m", {**whole, "pivots": whole["pivots"].new_zeros(9)})


def test_a_basis_that_is_missing():
    found = SharedSVD(rank=7).compress_together(weights(), moments())
    model = torch.nn.Module()
    model.a = torch.nn.ModuleDict({"k": FactorLinear.of(found["a.k"].tensor)})
    with pytest.raises(FormatError, match=r"a.k: the module a.q, which stores its basis, is missing"):
        join(model)
    model.a["q"] = FactorLinear.of(found["a.v"].tensor)
    with pytest.raises(FormatError, match="has no basis for"):
        join(model)
