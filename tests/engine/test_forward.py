"""A forward pass by block gives what the whole model gives, to the bit."""

import pytest
import torch

from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.engine.forward import forward
from squeeze.engine.network import Network
from squeeze.errors import SqueezeError
from tests.makers import networks
from tests.makers.whole import whole

transformers = pytest.importorskip("transformers", reason="transformers is not installed")


@pytest.mark.parametrize("kind", ("llama", "mixtral"))
def test_blocks_one_by_one_give_what_the_whole_model_gives(tmp_path, kind):
    source = networks.save(kind, tmp_path / "model")
    tokens = torch.randint(0, 300, (3, 24), generator=torch.Generator().manual_seed(2))
    network, found, outputs = Network(Checkpoint.open(source)), [], []
    for name, _, run in forward(network, tokens, outputs.append):
        assert [other for other in network.blocks if _loaded(network.module(other))] == [name]
        found.append(name)
        run()
    assert found == network.blocks and not any(_loaded(network.module(name)) for name in network.blocks)
    model, wanted = whole(network), []
    model.model.norm.register_forward_pre_hook(lambda module, args: wanted.append(args[0]))
    with torch.no_grad():
        for ids in tokens:
            model(ids[None], use_cache=False)
    assert all(torch.equal(*pair) for pair in zip(outputs, wanted, strict=True))
    with pytest.raises(SqueezeError, match="expected calibration tokens from 0 to 299"):
        next(forward(network, tokens + 300))


def _loaded(module):
    return not any(parameter.is_meta for parameter in module.parameters())
