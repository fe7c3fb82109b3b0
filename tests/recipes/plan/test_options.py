"""Options of a plan: prices come from other tokens, bits are those stored, and pairs fit their blocks."""

import pytest
import torch

from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.engine.network import Network
from squeeze.engine.selection import plan as linear_modules
from squeeze.errors import SqueezeError
from squeeze.factor.block_lowrank import Monarch
from squeeze.factor.curvature import Curvature, curvature, damage
from squeeze.factor.lowrank import WhitenedSVD
from squeeze.factor.modegpt import RowColumnPruning
from squeeze.recipes.plan.options import PlanContext, tails, unit
from squeeze.recipes.plan.plan import PlanConfig, edited, make_plan, planned

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
TOKENS = torch.randint(0, 300, (4, 48), generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96}
    torch.manual_seed(4)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, num_hidden_layers=2, vocab_size=300))
    path = tmp_path_factory.mktemp("plan") / "model"
    model.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def context(folder):
    network = Network(Checkpoint.open(folder))
    leaves = {block: linear_modules(network, block)[0] for block in network.blocks}
    seen, held = (curvature(network, half, leaves) for half in (TOKENS[::2], TOKENS[1::2]))
    return PlanContext(network, seen, held, torch.bfloat16, {"monarch": lambda keep: Monarch(keep=keep)})


def test_tails_are_what_ranks_cost_on_other_tokens():
    generator = torch.Generator().manual_seed(5)

    def moments(size):
        x = torch.randn((3 * size, size), generator=generator)
        return x.T @ x / len(x)

    for outputs, inputs in ((12, 20), (20, 12)):
        weight = torch.randn((outputs, inputs), generator=generator)
        seen, held = (Curvature(moments(inputs), moments(outputs)) for _ in range(2))
        method = WhitenedSVD(outputs=seen.outputs)
        left, right = method.factors(weight, seen.inputs, 7)
        found = tails(method, weight, seen, held)
        assert len(found) == 12
        assert damage((left @ right).float() - weight, held) == pytest.approx(float(found[7]), rel=1e-3)


def test_bits_are_those_that_are_stored(context):
    block = context.network.blocks[0]
    made = unit(context, block, linear_modules(context.network, block)[0], pairs=True).by_name()
    assert {name.rpartition(".")[2] for name in made} >= {"mlp", "values", "scores", "q_proj", "down_proj"}
    for name, one in made.items():
        for option in (one.options[0], one.options[len(one.options) // 2], one.options[-1]):
            if option.method is not None:
                weight = context.weight(name).bfloat16()
                stored = option.method.compress(weight, context.fit[name].inputs).tensor.stored_bits
            elif methods := planned(context, block, option.edit):
                weights = {module: context.weight(module).bfloat16() for module in methods}
                joint = methods[f"{block}.self_attn.q_proj"].compress_together(
                    weights, context.fit[next(iter(weights))].inputs
                )
                stored = sum(one.tensor.stored_bits for one in joint.values())
            else:
                parts = (part for part in edited(context, block, option.edit).values() if part.ndim == 2)
                stored = sum(RowColumnPruning().compress(part.bfloat16()).tensor.stored_bits for part in parts)
            assert option.bits == stored, (name, option.family, option.edit)
            assert option.cost >= 0 and (option.cost == 0) == (option.family == "dense")
    assert [option.family for option in made[f"{block}.mlp.up_proj"].options].count("monarch") == 5


def test_kinds_are_put_right_by_the_predictor(context):
    assert set(context.factors) == {"q", "k", "v", "o", "gate", "up", "down"}
    name = f"{context.network.blocks[0]}.mlp.up_proj"
    changed = context.weight(name) + 0.01
    expected = context.factors["up"] * damage(changed - context.weight(name), context.validation[name])
    assert context.price(name, changed) == pytest.approx(expected)


def test_a_plan_needs_two_sequences_and_a_budget(folder):
    checkpoint = Checkpoint.open(folder)
    with pytest.raises(SqueezeError, match="at least two calibration sequences"):
        make_plan(checkpoint, TOKENS[:1], PlanConfig(keep=0.9))
    with pytest.raises(SqueezeError, match="give a share"):
        make_plan(checkpoint, TOKENS, PlanConfig())
