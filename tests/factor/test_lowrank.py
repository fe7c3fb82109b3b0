"""Low rank, tensor networks, block low rank and pairs: optimal where theory says so, within their bounds elsewhere."""

import pytest
import torch
from hypothesis import given, settings, strategies as st

from squeeze.engine.method import HessianError, layer_error
from squeeze.errors import FormatError, SqueezeError
from squeeze.factor import forms, modegpt as decomposition
from squeeze.factor.block_lowrank import BLAST, Monarch
from squeeze.factor.curvature import Curvature, curvature, damage
from squeeze.factor.form import mask_of, packed_mask
from squeeze.factor.forms import read_form
from squeeze.factor.linear import FactorLinear
from squeeze.factor.lowrank import ASVD, SVD, WhitenedSVD, rank_for, root
from squeeze.factor.matrices import PIFA, Dense, LowRank
from squeeze.factor.networks import TTMatrix
from squeeze.factor.outliers import Quantised, WithOutliers
from squeeze.factor.pivots import maxvol
from squeeze.factor.planner import Option, Unit, choose
from squeeze.factor.tensor_network import TensorRing, TensorTrain, Tucker, factors_of, ring_svd, tt_svd, tucker_svd
from squeeze.quant.gptq import GPTQ
from tests.makers import networks

SEED = torch.Generator().manual_seed(5)


def matrix(*shape):
    return torch.randn(shape, generator=SEED)


def moments(size):
    """Of inputs that are far from white."""
    inputs = matrix(4 * size, size) * torch.logspace(0, -2, size)
    turned = inputs @ torch.linalg.qr(matrix(size, size)).Q
    return turned.T @ turned / len(turned)


@pytest.mark.parametrize("outputs, inputs", [(12, 30), (30, 12), (20, 20)])
@pytest.mark.parametrize("pivoted", [True, False])
def test_whitening_gives_the_optimum(outputs, inputs, pivoted):
    weight, hessian = matrix(outputs, inputs), moments(inputs)
    method = WhitenedSVD(rank=5, pivoted=pivoted, damping=1e-12)
    found = method.compress(weight, hessian).tensor
    inner, _ = root(hessian, 1e-12)
    singular = torch.linalg.svdvals(weight.double() @ inner).square()
    assert layer_error(weight, found.dequantize(), hessian) == pytest.approx(
        float(singular[5:].sum() / singular.sum()), rel=1e-3
    )
    errors = [
        layer_error(weight, one(rank=5).compress(weight, hessian).tensor.dequantize(), hessian) for one in (SVD, ASVD)
    ]
    assert layer_error(weight, found.dequantize(), hessian) < min(errors)


def test_gradients_weigh_outputs():
    weight, hessian, gradients = matrix(20, 30), moments(30), moments(20)
    seen = Curvature(hessian, gradients, 100)
    one = WhitenedSVD(rank=6, outputs=gradients, damping=1e-12, output_damping=1e-12)
    found = one.compress(weight, hessian).tensor
    scaled = root(gradients, 1e-12)[0].T @ weight.double() @ root(hessian, 1e-12)[0]
    lost = 0.5 * float(torch.linalg.svdvals(scaled)[6:].square().sum())
    assert damage(found.dequantize() - weight, seen) == pytest.approx(lost, rel=1e-3)
    other = WhitenedSVD(rank=6).compress(weight, hessian).tensor
    assert damage(found.dequantize() - weight, seen) < damage(other.dequantize() - weight, seen)


def test_the_plain_svd_is_eckart_and_youngs():
    weight = matrix(17, 23)
    error = (SVD(rank=4).compress(weight).tensor.dequantize() - weight).norm()
    assert error == pytest.approx(float(torch.linalg.svdvals(weight)[4:].square().sum().sqrt()), rel=1e-4)


@given(st.integers(1, 60), st.integers(1, 60), st.floats(0.05, 1.0))
@settings(max_examples=100, deadline=None)
def test_ranks_spend_what_may_be_kept(outputs, inputs, keep):
    for pivoted in (True, False):
        rank = rank_for(outputs, inputs, keep, pivoted)
        values = [r * (outputs + inputs - (r if pivoted else 0)) for r in (rank, rank + 1)]
        assert rank == 1 or values[0] <= keep * outputs * inputs + 1e-6
        assert rank == min(outputs, inputs) or values[1] > keep * outputs * inputs - 1e-6


def test_a_matrix_of_low_rank_is_stored_in_fewer_values_without_loss():
    left, right = matrix(40, 9).double(), matrix(9, 30).double()
    form = SVD(rank=9).compress((left @ right).float()).tensor
    assert isinstance(form, PIFA)
    assert torch.allclose(form.dequantize(), (left @ right).float(), atol=1e-4)
    assert form.stored_bits == 32 * 9 * (40 + 30 - 9) + 8 * 5
    rows, terms = maxvol(left)
    assert torch.allclose(terms @ left[rows], left) and terms.abs().max() < 1.1
    full = SVD(keep=1.0).compress(matrix(12, 30)).tensor
    assert isinstance(full, Dense)


def test_singular_statistics():
    weight = matrix(10, 16)
    assert torch.isfinite(WhitenedSVD(rank=4).compress(weight, torch.zeros(16, 16)).tensor.dequantize()).all()
    one = torch.outer(*[matrix(16)] * 2)
    scale, inverse = root(one, 0.0)
    assert torch.allclose(scale @ scale.T, one.double(), atol=1e-3)
    assert torch.isfinite(inverse).all()
    with pytest.raises(HessianError, match="not finite"):
        root(one * torch.nan, 0.0)


shapes = st.lists(st.integers(1, 6), min_size=2, max_size=4)


@given(shapes, st.integers(0, 2**31), st.lists(st.integers(1, 8), min_size=3, max_size=3))
@settings(max_examples=200, deadline=None)
def test_errors_of_tensor_networks_are_within_their_bounds(sizes, seed, ranks):
    tensor = torch.randn(sizes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    cores, bound = tt_svd(tensor, ranks[: len(sizes) - 1])
    assert (contracted(cores) - tensor).norm() <= bound + 1e-9
    cores, bound = ring_svd(tensor, ranks[0], ranks[: len(sizes) - 1])
    assert (contracted(cores) - tensor).norm() <= bound + 1e-9
    core, factors, bound = tucker_svd(tensor, (ranks * 2)[: len(sizes)])
    for mode, factor in enumerate(factors):
        core = torch.tensordot(core, factor, ([mode], [1])).movedim(-1, mode)
    assert (core - tensor).norm() <= bound + 1e-6


def contracted(cores):
    merged = cores[0]
    for core in cores[1:]:
        merged = torch.tensordot(merged, core, ([-1], [0]))
    return torch.diagonal(merged, dim1=0, dim2=-1).sum(-1)


@pytest.mark.parametrize("hessian", [False, True])
@pytest.mark.parametrize("method", [TensorTrain, TensorRing, Tucker])
def test_at_full_rank_nothing_is_lost(method, hessian):
    weight = matrix(24, 36).double()
    one = method()
    object.__setattr__(one, "keep", 100.0)  # room for every rank
    found = one.decompose(weight, moments(36).double() if hessian else None).dequantize()
    assert (found - weight).norm() <= 1e-5 * weight.norm()


@pytest.mark.parametrize("method", [TensorTrain(modes=3), TensorTrain(), TensorRing(), Tucker(), Monarch(), BLAST()])
@pytest.mark.parametrize("keep", [0.5, 0.9])
def test_budgets_are_kept_and_more_is_better(method, keep):
    from dataclasses import replace

    weight, hessian = matrix(48, 32).bfloat16(), moments(32)
    form = replace(method, keep=keep).compress(weight, hessian).tensor
    assert form.stored_bits <= 16 * keep * weight.numel()
    less = replace(method, keep=0.3).compress(weight, hessian).tensor
    assert layer_error(weight, form.dequantize(), hessian) < layer_error(weight, less.dequantize(), hessian)
    layer = FactorLinear.of(form)
    x = matrix(3, 32)
    assert torch.allclose(layer(x), x @ form.dequantize().T, rtol=1e-3, atol=1e-3)
    assert type(read_form("m", form.tensors())) is type(form)


@pytest.mark.parametrize("method", [TensorTrain, Tucker])
def test_whitening_helps_tensor_networks(method):
    weight, hessian = matrix(48, 32), moments(32)
    errors = [
        layer_error(weight, method(keep=0.5, whiten=whiten).compress(weight, hessian).tensor.dequantize(), hessian)
        for whiten in (True, False)
    ]
    assert errors[0] < errors[1]


def test_blast_is_no_worse_than_low_rank_of_its_rank():
    weight, hessian = matrix(48, 32), moments(32)
    found = BLAST(keep=0.5).compress(weight, hessian).tensor
    one = WhitenedSVD(rank=found.bases.shape[2], pivoted=False).compress(weight, hessian).tensor
    assert layer_error(weight, found.dequantize(), hessian) < layer_error(weight, one.dequantize(), hessian)


def test_budgets_that_no_rank_fits():
    with pytest.raises(SqueezeError, match="even ranks of 1 take"):
        TensorTrain(keep=0.001).compress(matrix(16, 16), moments(16))
    with pytest.raises(SqueezeError, match="to keep: it lies above 0"):
        Tucker(keep=0)
    with pytest.raises(SqueezeError, match="rank 0: it is at least 1"):
        SVD(rank=0)


def test_factors_of_a_size():
    assert factors_of(576, 2) == (24, 24) and factors_of(1536, 3) == (8, 12, 16) and factors_of(7, 2) == (1, 7)


@pytest.mark.parametrize("kind", forms.FORMS)
def test_the_registry_is_complete(kind):
    form = forms.FORMS[kind]
    assert form.kind == kind
    assert set(forms.LEAVES) >= set(forms._names(form))


def test_forms_that_do_not_fit_together():
    with pytest.raises(FormatError, match="m: the tensors left make no matrix"):
        read_form("m", {"left": matrix(3, 2)})
    with pytest.raises(FormatError, match="m: the tensors of a low-rank matrix do not fit together"):
        read_form("m", {"left": matrix(3, 2), "right": matrix(3, 4)})
    with pytest.raises(FormatError, match="an entry lies outside"):
        inner = LowRank(matrix(3, 2), matrix(2, 4)).tensors()
        read_form("m", {**inner, "entries_at": torch.tensor([12], dtype=torch.int32), "entries": torch.ones(1)})
    with pytest.raises(FormatError, match="the ranks of neighbouring cores differ"):
        TTMatrix.of({"cores0": matrix(1, 2, 2, 3), "cores1": matrix(2, 2, 2, 1)})


def test_outliers_are_kept_exactly():
    weight = matrix(20, 30).bfloat16()
    weight[3, 4] = 100
    form = WithOutliers(SVD(rank=2), 3).compress(weight).tensor
    assert form.dequantize()[3, 4] == 100
    x = matrix(5, 30)
    assert torch.allclose(FactorLinear.of(form)(x), x @ form.dequantize().T, rtol=1e-3, atol=1e-3)


def test_quantised_factors_fit_their_second_to_their_first():
    weight, hessian = matrix(64, 96).bfloat16(), moments(96)
    plain = WhitenedSVD(rank=32).compress(weight, hessian).tensor
    form = Quantised(WhitenedSVD(rank=32), GPTQ(bits=8, group_size=32)).compress(weight, hessian).tensor
    assert form.stored_bits < 0.6 * plain.stored_bits
    assert layer_error(weight, form.dequantize(), hessian) < 1.05 * layer_error(weight, plain.dequantize(), hessian)


@given(st.lists(st.booleans(), max_size=40))
def test_masks(bits):
    mask = torch.tensor(bits, dtype=torch.bool)
    assert torch.equal(mask_of(packed_mask(mask), len(bits)), mask)


def option(cost, bits):
    return Option("x", cost, bits)


def test_the_planner_spends_its_budget_where_it_pays():
    units = [
        Unit("a", [option(0, 100), option(1, 60), option(9, 20)]),
        Unit("b", [option(0, 100), option(5, 60)]),
        Unit("pair", [option(0.5, 120)], (Unit("c", [option(0, 100)]), Unit("d", [option(0, 100), option(4, 50)]))),
    ]
    assert set(choose(units, 400)) == {"a", "b", "c", "d"}
    chosen = choose(units, 320)
    assert set(chosen) == {"a", "b", "pair"} and sum(one.bits for one in chosen.values()) <= 320
    chosen = choose(units, 281)
    assert chosen["a"].bits == 60 and chosen["b"].bits == 100
    with pytest.raises(SqueezeError, match="the matrices take at least 25 bytes, and 12 are left"):
        choose(units, 100)


def pair():
    gate, up, down = matrix(24, 16), matrix(24, 16), matrix(16, 24)
    x = matrix(200, 16) * torch.logspace(0, -1, 16)
    inner = torch.nn.functional.silu(x @ gate.T) * (x @ up.T)
    return {"gate": gate, "up": up, "down": down}, x, inner


def test_channels_make_up_for_those_that_go():
    matrices, x, inner = pair()
    seen = Curvature(inner.T @ inner / len(inner), torch.eye(16), len(inner))
    path = decomposition.channels(matrices["down"], seen, 6, group=1)
    out = decomposition.without_channels(matrices, seen, path.order)
    changed = torch.nn.functional.silu(x @ out["gate"].T) * (x @ out["up"].T) @ out["down"].T
    error = (changed - inner @ matrices["down"].T).square().sum(1).mean() / 2
    assert float(error) == pytest.approx(float(path.costs[-1]), rel=0.02)
    scores = decomposition.leverage(seen.inputs).argsort()
    other = decomposition.channels(matrices["down"], seen, 6, scores, group=1)
    assert path.costs[-1] <= other.costs[-1]
    sliced = decomposition.RowColumnPruning().compress(out["down"]).tensor
    assert sliced.core.shape == (16, 18) and torch.equal(sliced.dequantize(), out["down"])


def test_values_of_a_head_are_taken_apart():
    v, o = matrix(16, 24), matrix(24, 32)  # two key heads, two queries each
    seen = Curvature(moments(24), moments(16), 100)
    heads = decomposition.values(v, o, seen, 8)
    bias = matrix(16, 1)[:, 0]
    same_v, same_o, same_bias = decomposition.with_values(v, o, heads, [8, 8], bias)

    def products(v, o):
        return torch.einsum("ohqs,hsi->hqoi", o.view(24, 2, 2, 8), v.view(2, 8, 24))

    assert torch.allclose(products(same_v, same_o), products(v, o), atol=1e-3)
    repeated = [one.view(2, 1, 8).expand(2, 2, 8).reshape(32) for one in (same_bias, bias)]
    assert torch.allclose(same_o @ repeated[0], o @ repeated[1], atol=1e-3)
    less_v, less_o, _ = decomposition.with_values(v, o, heads, [5, 8])
    assert (less_v == 0).all(1).sum() == 3 and (less_o == 0).all(0).sum() == 6
    assert torch.allclose(products(less_v, less_o)[1], products(v, o)[1], atol=1e-3)


def test_rotary_pairs_go_from_queries_and_keys_alike():
    q, k = matrix(32, 24), matrix(16, 24)
    k[3] = k[7] = 0  # the pair 3 of the first head, whose loss costs nothing
    units, path = decomposition.rotary_pairs(
        q, k, Curvature(moments(24), moments(32), 9), Curvature(moments(24), moments(16), 9), 8
    )
    assert units[0].tolist() == [0, 3] and path.costs[1] == 0 and len(path.costs) == 9
    new_q, new_k = decomposition.without_pairs(q, k, units[:2], 8)
    assert (new_k == 0).all(1).sum() == 4 and (new_q == 0).all(1).sum() == 8


def test_curvature_predicts_what_a_change_costs():
    pytest.importorskip("transformers", reason="transformers is not installed")
    model = networks.peaked_llama(2)
    tokens = torch.randint(0, 64, (16, 32), generator=SEED)
    names = networks.linear_names(model)
    seen = curvature(model, tokens, names)
    assert seen[names[0]].inputs is seen[names[1]].inputs
    with torch.no_grad():
        wanted = torch.log_softmax(model(tokens).logits, -1)
    predicted, measured = [], []
    for name in names:
        weight = model.get_submodule(name).weight
        before = weight.data.clone()
        weight.data += 0.03 * matrix(*weight.shape)
        with torch.no_grad():
            found = torch.log_softmax(model(tokens).logits, -1)
        predicted.append(damage(weight.data - before, seen[name]))
        measured.append(float((wanted.exp() * (wanted - found)).sum(-1).mean()))
        weight.data = before
    ratios = torch.tensor(predicted) / torch.tensor(measured)
    assert ratios.min() > 0.2 and 0.7 < ratios.median() < 1.3 and ratios.max() < 3
