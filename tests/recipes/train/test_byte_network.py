"""Recurrences by the compiled loop and by doubling agree, and a model may take a text in pieces of any length."""

import pytest
import torch

from squeeze.kernels.recurrence import reference_scan, scan
from squeeze.recipes.train.byte_network import BYTES, Shape, build, rounded

SHAPES = {
    "flat": Shape(16, 2, 24),
    "by words": Shape(16, 2, 24, word_width=20, word_layers=2, word_feed_forward=28),
    "by words, odd": Shape(16, 3, 24, word_width=12, word_layers=1, word_feed_forward=28),
    "with tables": Shape(16, 2, 24, word_width=20, word_layers=1, word_feed_forward=28, gram_rows=32),
}
TEXT = b"def f(x):\n    return x + 1  # words, and more\n\xe2\x82\xac  \0\xff end" * 3


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(1)


def test_the_loop_is_the_scan_by_doubling_with_its_gradients():
    arguments = [torch.rand(3, 13, 5), torch.randn(3, 13, 5), torch.randn(3, 5)]
    results = []
    for way in (scan, reference_scan):
        leaves = [x.clone().requires_grad_() for x in arguments]
        states = way(*leaves)
        (states.cos() * torch.arange(5)).sum().backward()
        results.append([states, *(leaf.grad for leaf in leaves)])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


def test_rounding_has_sixteen_levels_a_row_and_the_derivative_of_none():
    weight = torch.randn(5, 400).mul(torch.rand(5, 1) + 0.1).requires_grad_()
    coarse = rounded(weight, 4)
    coarse.cos().sum().backward()
    torch.testing.assert_close(weight.grad, -coarse.detach().sin())
    for row, exact in zip(coarse.detach(), weight.detach(), strict=True):
        assert row.unique().numel() == 16
        assert (row - exact).square().mean() < 0.015 * exact.square().mean()  # 0.0115 for normal weights
    assert rounded(weight, 0) is weight


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("sizes", [[1] * 40, [7, 1, 30, 2], [40]])
@torch.no_grad()
def test_pieces_give_what_the_whole_gives(name, sizes):
    model = build(SHAPES[name])
    for table in model.grams:
        torch.nn.init.normal_(table.weight)
    data = torch.tensor([list(TEXT[:40]), list(TEXT[21:61])])
    whole, _ = model(data, model.start(2))
    state, pieces = model.start(2), []
    for piece in data.split(sizes, 1):
        logits, state = model(piece, state)
        pieces.append(logits)
    torch.testing.assert_close(torch.cat(pieces, 1), whole, atol=1e-5, rtol=1e-4)
    assert whole.shape == (2, 40, BYTES)


@pytest.mark.parametrize("name", SHAPES)
@torch.no_grad()
def test_nothing_is_known_of_later_bytes(name):
    model = build(SHAPES[name])
    data = torch.tensor([list(TEXT[:50])])
    changed = data.clone()
    changed[0, 30:] = 65
    before, after = (model(x, model.start(1))[0] for x in (data, changed))
    torch.testing.assert_close(before[:, :30], after[:, :30])
    assert not torch.allclose(before[:, 30:], after[:, 30:])


@pytest.mark.parametrize("name", SHAPES)
def test_a_text_is_learned(name):
    model = build(SHAPES[name])
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    data = torch.tensor([list(TEXT)])
    for _ in range(60):
        logits, _ = model(data[:, :-1], model.start(1))
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), data[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.5


def test_products_count_the_weights_that_are_multiplied():
    flat = SHAPES["flat"]
    weights = sum(weight.numel() for name, weight in build(flat).named_parameters() if weight.ndim == 2)
    assert flat.products() == weights - BYTES * flat.width
