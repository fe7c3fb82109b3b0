"""ComfyUI's node, against stand-ins of the interfaces of ComfyUI that it uses."""

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import squeeze
from squeeze.errors import FormatError, SqueezeError
from squeeze.integrations import comfyui
from squeeze.integrations.comfyui import CodedTensor, LoadPacked

pytestmark = pytest.mark.usefixtures("in_folder")


class manual_cast:
    """Operations that cast weights to their input's dtype."""

    class Linear(nn.Linear):
        weight_function = bias_function = ()

    LayerNorm = nn.LayerNorm


class Network(nn.Module):
    def __init__(self, ops):
        super().__init__()
        self.first = ops.Linear(128, 512, dtype=torch.bfloat16)
        self.norm = ops.LayerNorm(512, dtype=torch.bfloat16)
        self.second = ops.Linear(512, 256, bias=False, dtype=torch.bfloat16)
        self.last = ops.Linear(256, 8, dtype=torch.bfloat16)  # too small to stay coded

    def forward(self, x):
        return self.last(self.second(self.norm(self.first(x))))


def load_diffusion_model_state_dict(sd, model_options):
    """Detect a model by its shapes, as ComfyUI does, and load it."""
    if "first.weight" not in sd or sd["first.weight"].shape != (512, 128):
        return None
    assert sum(tensor.nelement() for tensor in sd.values()) > 0
    made = Network(model_options["custom_operations"])
    missing, unexpected = made.load_state_dict(sd, strict=False)
    assert not missing
    assert not unexpected
    return made


@pytest.fixture(autouse=True)
def comfy(monkeypatch):
    content = {
        "comfy": {},
        "comfy.ops": {"manual_cast": manual_cast},
        "comfy.sd": {"load_diffusion_model_state_dict": load_diffusion_model_state_dict},
        "folder_paths": {
            "get_filename_list": lambda kind: [path.name for path in sorted(Path(kind).glob("*.safetensors"))],
            "get_full_path_or_raise": lambda kind, name: str(Path(kind, name)),
        },
    }
    for name, members in content.items():
        module = ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
    sys.modules["comfy"].ops, sys.modules["comfy"].sd = sys.modules["comfy.ops"], sys.modules["comfy.sd"]


@pytest.fixture
def original():
    torch.manual_seed(0)
    made = Network(manual_cast)
    Path("diffusion_models").mkdir()
    save_file(made.state_dict(), "model.safetensors")
    squeeze.pack("model.safetensors", "diffusion_models/packed.safetensors")
    return made


def loaded(name: str = "packed.safetensors") -> Network:
    return getattr(LoadPacked(), LoadPacked.FUNCTION)(name)[0]


def test_layers_stay_coded_and_compute_the_same_bits(original):
    assert LoadPacked.INPUT_TYPES()["required"]["name"] == (["packed.safetensors"],)
    found = loaded()
    for layer in (found.first, found.second):
        assert layer.is_coded
        assert layer.weight.nbytes < 0.8 * layer.in_features * layer.out_features * 2
    assert not found.last.is_coded
    x = torch.randn(5, 128).bfloat16()
    for _ in range(2):
        assert torch.equal(found(x), original(x))
    copies = sum(tensor.nbytes for tensor in found.state_dict().values())
    assert copies < 0.8 * sum(tensor.nbytes for tensor in original.state_dict().values())


def test_a_lora_is_added_and_taken_away(original):
    found, x = loaded(), torch.randn(5, 128).bfloat16()
    change = torch.randn(512, 128).mul(0.1)
    before = found.first.weight
    dense = found.first.convert_weight(before.to(torch.float16), inplace=True)  # ComfyUI casts what it has
    assert torch.equal(dense, original.first.weight)
    found.first.set_weight(dense + change, seed=1)
    assert not found.first.is_coded
    with torch.no_grad():
        original.first.weight += change.bfloat16()
    changed = found.first.set_weight(dense + change, return_weight=True)
    assert torch.equal(found.first.weight, changed)
    found.first.weight = nn.Parameter(before, requires_grad=False)
    assert found.first.is_coded
    found.first.weight_function = [lambda weight: weight * 2]
    original_first = load_file("model.safetensors")["first.weight"]
    expected = nn.functional.linear(x, original_first * 2, original.first.bias)
    assert torch.equal(found.first(x), expected)
    found.first.weight_function = []
    assert torch.equal(found.first(x), nn.functional.linear(x, original_first, original.first.bias))


def test_other_uses_of_a_coded_tensor_decode_it(original):
    state = comfyui.state_dict("diffusion_models/packed.safetensors")
    coded = state["first.weight"]
    assert isinstance(coded, CodedTensor)
    assert (coded.shape, coded.dtype) == ((512, 128), torch.bfloat16)
    first, second = coded.chunk(2)
    assert torch.equal(torch.cat([first, second]), original.first.weight)
    assert torch.equal(coded.float(), original.first.weight.float())
    assert torch.equal(torch.empty(512, 128).copy_(coded), original.first.weight.float())
    assert coded[0].tolist() == original.first.weight[0].tolist()
    assert torch.equal(torch.from_numpy(coded.view(torch.int16).numpy()), original.first.weight.view(torch.int16))
    cross = Network(manual_cast)
    cross.load_state_dict(state)
    assert torch.equal(cross.first.weight, original.first.weight)


@pytest.mark.parametrize(
    "change",
    [
        lambda coded: coded.mul_(2),
        lambda coded: coded.copy_(torch.zeros(512, 128)),
        lambda coded: torch.neg(torch.zeros(512, 128), out=coded),
        lambda coded: coded.__setitem__(0, 5),
        lambda coded: coded.__setitem__((slice(2), 3), 5),
        lambda coded: coded.__setitem__(coded > 0, 5),
        lambda coded: coded[0].fill_(5),
        lambda coded: coded.chunk(2)[1].mul_(2),
        lambda coded: coded.view(-1)[:7].zero_(),
        lambda coded: coded.data.T.add_(1),
        lambda coded: coded.detach().copy_(torch.zeros(512, 128)),
        lambda coded: coded.unbind()[3][5:].neg_(),
        lambda coded: torch._foreach_add_([coded], 1.0),
        lambda coded: torch._foreach_mul_([torch.ones(3), coded[0]], 2.0),
    ],
)
def test_a_coded_tensor_or_a_view_of_it_cannot_be_changed_in_place(original, change):
    coded = comfyui.state_dict("diffusion_models/packed.safetensors")["first.weight"]
    with pytest.raises(SqueezeError, match="a coded weight cannot be changed in place"):
        change(coded)
    assert torch.equal(coded + 0, original.first.weight)


def test_a_layer_takes_a_part_of_a_coded_tensor(original):
    coded = comfyui.state_dict("diffusion_models/packed.safetensors")["first.weight"]
    layer = comfyui.operations(manual_cast).Linear(128, 256, bias=False)
    layer.load_state_dict({"weight": coded[:256]})
    assert torch.equal(layer.weight, original.first.weight[:256])
    assert type(layer.weight) is nn.Parameter
    own = coded.clone()
    own[0] = 5
    assert own[0, 0] == 5


def test_a_shard_stands_for_its_folder(original):
    tensors = original.state_dict()
    Path("shards").mkdir()
    names = dict.fromkeys(tensors, "b.safetensors") | {"first.weight": "a.safetensors"}
    for shard in ("a.safetensors", "b.safetensors"):
        save_file({key: tensors[key] for key, place in names.items() if place == shard}, f"shards/{shard}")
    Path("shards/model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    squeeze.pack("shards", "diffusion_models/whole")
    x = torch.randn(2, 128).bfloat16()
    assert torch.equal(loaded("whole/b.safetensors")(x), original(x))


def test_what_cannot_be_loaded_is_refused_in_one_line(original, monkeypatch):
    save_file({"a": torch.ones(3)}, "diffusion_models/plain.safetensors")
    with pytest.raises(FormatError, match="not a packed checkpoint"):
        loaded("plain.safetensors")
    save_file({"a": torch.ones(3)}, "other.safetensors")
    squeeze.pack("other.safetensors", "diffusion_models/other.safetensors")
    with pytest.raises(FormatError, match="ComfyUI does not know this kind of model"):
        loaded("other.safetensors")
    monkeypatch.delattr("comfy.sd.load_diffusion_model_state_dict")
    with pytest.raises(SqueezeError, match="another interface"):
        loaded()
