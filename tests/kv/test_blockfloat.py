"""Block floating point: the order of channels."""

import pytest

from squeeze.kv.blockfloat import BlockFloat, channel_orders
from tests.makers.kv_models import calibrated_on_text, error_of, gpt2, llama


@pytest.fixture(scope="module", params=[llama, gpt2])
def calibrated(request):
    return calibrated_on_text(request.param())


def test_channel_orders_permute_channels_of_each_head(calibrated):
    model, statistics = calibrated
    orders = channel_orders(model, statistics, BlockFloat(4, share=4, window=16))
    heads = model.config.num_attention_heads if hasattr(model.config, "n_head") else 2
    assert len(orders) == 2 and len(orders[0]) == heads and sorted(orders[0][0][0]) == list(range(8))
    assert any(order != tuple(range(8)) for layer in orders for pair in layer for order in pair)
    assert error_of(model, BlockFloat(8, orders=orders, window=16)) < 0.02
