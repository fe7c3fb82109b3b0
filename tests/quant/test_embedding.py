"""Embeddings that stay quantised look up the rows of the dense table, and tied heads multiply by it."""

from copy import deepcopy

import pytest
import torch
from torch import nn

from squeeze.errors import FormatError, SqueezeError
from squeeze.kernels import dequant
from squeeze.quant.embedding import QuantEmbedding, TiedLinear, quantised_embedding, tied_layer
from squeeze.quant.formats import FORMATS, Grid
from tests.makers.quantised import matrix, rounded

IDS = torch.tensor([[3, 0, 36], [3, 3, 7]])
GRIDS = {"4 bits": Grid(4, 32), "8 bits, asymmetric": Grid(8, 16, False), "3 bits": Grid(3, 64, False)}


class Scaled(nn.Embedding):
    """An embedding that multiplies its rows, as Gemma's does."""

    def __init__(self, *sizes, factor):
        super().__init__(*sizes, padding_idx=0)
        self.register_buffer("factor", torch.tensor(factor), persistent=False)

    def forward(self, ids):
        return super().forward(ids) * self.factor


def stored(weight):
    tensors = FORMATS["squeeze"].tensors("", weight, torch.bfloat16)
    return {name.removeprefix("."): tensor for name, tensor in tensors.items()}


@pytest.mark.parametrize("name", GRIDS)
def test_a_lookup_returns_the_rows_of_the_dense_table(name):
    weight = rounded(matrix(37, 64), GRIDS[name])
    table = quantised_embedding("wte", nn.Embedding(37, 64, padding_idx=0), stored(weight))
    assert torch.equal(table(IDS), weight.dequantize()[IDS])
    assert torch.equal(table.weight, weight.dequantize())
    assert table(IDS[:, :0]).shape == (2, 0, 64)
    assert set(table.state_dict()) == {*stored(weight)}


def test_a_lookup_expands_its_rows_only(monkeypatch):
    weight, sizes = rounded(matrix(37, 64), Grid(4, 32)), []
    table, whole = quantised_embedding("wte", nn.Embedding(37, 64), stored(weight)), dequant.dequantize
    monkeypatch.setattr(
        dequant, "dequantize", lambda packed, *dtype: sizes.append(packed.outputs) or whole(packed, *dtype)
    )
    table(IDS)
    assert sizes == [4]  # 0, 3, 7 and 36


def test_the_class_of_the_dense_embedding_computes_the_result():
    weight = rounded(matrix(37, 64), Grid(4, 32))
    table = quantised_embedding("wte", Scaled(37, 64, factor=8.0), stored(weight))
    assert isinstance(table, Scaled)
    assert isinstance(table, QuantEmbedding)
    assert torch.equal(table(IDS), 8 * weight.dequantize()[IDS])


def test_a_tied_head_multiplies_by_the_table_and_holds_nothing():
    weight, x = rounded(matrix(37, 64), Grid(4, 32)), torch.randn(2, 5, 64)
    model = nn.ModuleDict({"table": quantised_embedding("wte", nn.Embedding(37, 64), stored(weight))})
    model["head"] = TiedLinear(model["table"])
    assert not model["head"].state_dict()
    assert torch.allclose(model["head"](x), x @ weight.dequantize().T, atol=1e-4)
    copied = deepcopy(model)
    copied["table"].scales.mul_(2)
    assert torch.allclose(copied["head"](x), 2 * x @ weight.dequantize().T, atol=1e-4)
    assert torch.equal(model["head"].weight, weight.dequantize())
    assert copied.bfloat16()["table"](IDS).dtype == torch.bfloat16


def test_what_is_wrong_is_said():
    weight = rounded(matrix(37, 64), Grid(4, 32))
    table = quantised_embedding("wte", nn.Embedding(37, 64), stored(weight))
    for token in (-1, 37):
        with pytest.raises(SqueezeError, match=r"^expected tokens from 0 to 36$"):
            table(torch.tensor([token]))
    with pytest.raises(FormatError, match=r"^wte: expected 30 rows, got 37$"):
        quantised_embedding("wte", nn.Embedding(30, 64), stored(weight))
    with pytest.raises(FormatError, match="outliers"):
        outliers = stored(rounded(matrix(37, 64), Grid(4, 32, outliers=True)))
        quantised_embedding("wte", nn.Embedding(37, 64), outliers)


def test_layers_that_share_the_table_keep_their_class_and_bias():
    weight, x = rounded(matrix(37, 64), Grid(4, 32)), torch.randn(2, 64)
    table, head = quantised_embedding("wte", nn.Embedding(37, 64), stored(weight)), nn.Linear(64, 37)
    decoder = tied_layer(table, Scaled(37, 64, factor=8.0))
    assert isinstance(decoder, Scaled) and not decoder.state_dict()
    assert torch.equal(decoder(IDS), 8 * weight.dequantize()[IDS])
    assert torch.equal(tied_layer(table, head)(x), TiedLinear(table)(x) + head.bias)
    with pytest.raises(FormatError, match=r"^wte: a Conv1d cannot share a quantised table$"):
        tied_layer(table, nn.Conv1d(64, 37, 1))
