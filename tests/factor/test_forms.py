"""The registry of forms, and tensors that make none."""

import pytest
import torch

from squeeze.errors import FormatError
from squeeze.factor import forms
from squeeze.factor.forms import read_form
from squeeze.factor.matrices import LowRank
from squeeze.factor.networks import TTMatrix
from tests.makers.draws import Draws

draws = Draws(5)
matrix, moments = draws.matrix, draws.moments


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
