"""Layers of factorised matrices: one row at a time, and after weights have moved."""

import pytest
import torch

from squeeze.errors import FormatError
from squeeze.factor import stored
from squeeze.factor.form import packed_mask
from squeeze.factor.matrices import PIFA, LowRank
from squeeze.factor.networks import TTMatrix
from squeeze.factor.stored import FactorLinear, read_form
from squeeze.kernels import lowrank
from tests.makers.draws import Draws

draws = Draws(6)
matrix = draws.matrix


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("outputs, inputs, rank", [(33, 47, 21), (64, 5, 3), (7, 90, 1), (12, 12, 12)])
def test_one_row_times_a_pivoted_matrix(dtype, outputs, inputs, rank, monkeypatch):
    """In one call where it is small: what the definition gives."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    mask = torch.zeros(outputs, dtype=torch.bool)
    mask[torch.randperm(outputs, generator=draws.generator)[:rank]] = True
    form = PIFA(packed_mask(mask), matrix(outputs - rank, rank).to(dtype), matrix(rank, inputs).to(dtype))
    x = matrix(1, inputs).to(dtype)
    assert lowrank.can_multiply_pivoted(x, form.base, form.coefficients) == (dtype == torch.bfloat16)
    layer = FactorLinear.of(form)
    for parameter in layer.parameters():
        parameter.requires_grad_(True)
    with torch.no_grad():
        found = layer(x)
    assert not found.requires_grad and layer(x).requires_grad
    wanted = x.double() @ form.dequantize(torch.float64).T
    error = 1e-5 if dtype == torch.float32 else 1e-2
    assert (found.double() - wanted).norm() <= error * wanted.norm()
    monkeypatch.setattr(lowrank, "can_multiply_pivoted", lambda *_: False)
    with torch.no_grad():
        torch.testing.assert_close(found, layer(x), rtol=2e-2 if dtype != torch.float32 else 1e-5, atol=1e-4)


def test_a_row_follows_weights_that_move():
    form = PIFA(packed_mask(torch.tensor([True, False, True])), matrix(1, 2), matrix(2, 4))
    layer, x = FactorLinear.of(form), matrix(1, 4).bfloat16()
    with torch.inference_mode():
        layer(x.float())
        layer.to(torch.bfloat16)
        assert layer(x).dtype == torch.bfloat16
        layer.base.data = -layer.base.data
        assert torch.equal(layer(x), -FactorLinear.of(form).to(torch.bfloat16)(x))
    whole = matrix(1200, 1800)
    assert not lowrank.can_multiply_pivoted(x, whole, whole)
    assert not lowrank.can_multiply_pivoted(x.expand(2, 4), form.base, form.coefficients)


@pytest.mark.parametrize("kind", stored.FORMS)
def test_the_registry_is_complete(kind):
    form = stored.FORMS[kind]
    assert form.kind == kind
    assert set(stored.LEAVES) >= set(stored._names(form))


def test_forms_that_do_not_fit_together():
    with pytest.raises(FormatError, match="m: the tensors left are not a known factorised matrix"):
        read_form("m", {"left": matrix(3, 2)})
    with pytest.raises(FormatError, match="m: the tensors of a low-rank matrix do not fit together"):
        read_form("m", {"left": matrix(3, 2), "right": matrix(3, 4)})
    with pytest.raises(FormatError, match="an entry is outside"):
        inner = LowRank(matrix(3, 2), matrix(2, 4)).tensors()
        read_form("m", {**inner, "entries_at": torch.tensor([12], dtype=torch.int32), "entries": torch.ones(1)})
    with pytest.raises(FormatError, match="the ranks of neighbouring cores differ"):
        TTMatrix.of({"cores0": matrix(1, 2, 2, 3), "cores1": matrix(2, 2, 2, 1)})
