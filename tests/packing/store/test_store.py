"""A store keeps each tensor once, loses nothing to a kill, and names what damage hurts."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from squeeze.errors import DamagedError, FormatError, OptionError, SqueezeError
from squeeze.packing.store import Store, objects
from squeeze.packing.store.adding import by_form
from squeeze.packing.store.load import load
from tests.makers.checkpoints import content
from tests.makers.command import call, fails, run
from tests.makers.floats import as_bf16, weights


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def model(name, change=0, tensors=3):
    """Write a model's folder; `change` values of the first tensor differ from those of other models."""
    path = Path(name)
    path.mkdir()
    made = {f"layer.{n}": torch.from_numpy(as_bf16(weights(40_000, n)).view(np.int16)) for n in range(tensors)}
    made["layer.0"][:change] += 1
    save_file(
        {key: tensor.view(torch.bfloat16).view(200, 200) for key, tensor in made.items()}, path / "model.safetensors"
    )
    (path / "config.json").write_text('{"model_type": "x"}')
    torch.save({"a": made["layer.1"].view(torch.bfloat16).clone()}, path / "training.pt")
    return path


@pytest.fixture
def store():
    """Make a store of three models: a base, one with some changes, and one that is the same."""
    made = Store("store")
    for number, change in enumerate((0, 300, 0)):
        made.add(model(f"m{number}", change))
    return made


def object_of(store, name, tensor):
    """Return the file of a tensor's object."""
    return store.objects.place(store.tensor(name, tensor)[0].key)


def test_models_come_back_byte_for_byte(store):
    for name in ("m0", "m1", "m2"):
        store.get(name, f"back-{name}", threads=2)
        assert content(f"back-{name}") == content(name)
    store.add("m1/model.safetensors", "alone")
    store.get("alone", "alone.safetensors")
    assert Path("alone.safetensors").read_bytes() == Path("m1/model.safetensors").read_bytes()
    assert store.names() == ["alone", "m0", "m1", "m2"]


def test_what_is_equal_is_stored_once_and_what_differs_as_a_difference(store):
    sizes = {one.name: one.alone for one in store.list()}
    assert sizes["m0"] == sizes["m2"] == 0
    assert 0 < sizes["m1"] < 4_000
    assert store.size() < 0.3 * sum(one.size for one in store.list())
    assert store.add(model("m3", 300), level="archive").coded < 3_000
    key = store.tensor("m1", "layer.0")[0].key
    assert store.objects.header(key).base == store.tensor("m0", "layer.0")[0].key
    assert store.objects.header(key).chain == 1


def test_a_base_can_be_named_and_chains_end():
    store = Store("store")
    store.add(model("m0"))
    for number in range(1, 12):
        store.add(model(f"m{number}", 20 * number), base=f"m{number - 1}")
    chains = [store.objects.header(store.tensor(name, "layer.0")[0].key).chain for name in store.names()]
    assert max(chains) == 8
    assert sorted(chains)[:2] == [0, 0]
    assert store.verify() == len(list(store.objects.keys()))
    with pytest.raises(SqueezeError, match=r"^store has no model 'x': it has m0, m1, m10$"):
        store.add(model("other"), base="x")


def test_models_load_from_the_store(store):
    for name in ("m0", "m1"):
        loaded, expected = load(store, name), load_file(f"{name}/model.safetensors")
        assert loaded.keys() == expected.keys()
        assert all(torch.equal(loaded[key], tensor) for key, tensor in expected.items())
    assert load(store, "m0").nbytes < 0.8 * 3 * 80_000
    entry, data = store.tensor("m1", "layer.0")
    assert entry.shape == (200, 200)
    assert data.tobytes() == load_file("m1/model.safetensors")["layer.0"].view(torch.uint8).numpy().tobytes()


def test_gc_deletes_what_no_model_needs(store):
    assert store.gc() == (0, 0)
    store.remove("m0")
    store.remove("m2")
    assert store.gc() == (0, 0)  # m1 needs every object of its base
    store.get("m1", "back")
    assert content("back") == content("m1")
    store.remove("m1")
    count, freed = store.gc()
    assert count > 4
    assert freed > 100_000
    assert list(store.objects.keys()) == []
    assert store.verify() == 0


def test_damage_is_named_with_the_models_that_it_hurts(store):
    path = object_of(store, "m0", "layer.0")
    whole = path.read_bytes()
    path.chmod(0o644)
    name = f"{path.parent.name}{path.name}"[:16]
    for hurt in (whole[:500] + bytes([whole[500] ^ 8]) + whole[501:], whole[:700], b"", None):
        if hurt is None:
            path.unlink()
        else:
            path.write_bytes(hurt)
        said = fails("store", "verify", "store")
        assert said.startswith(f"Error: store: object {name} is ")
        assert "(needed by m0, m1, m2)" in said
        assert said.count("\n") == 1
        with pytest.raises(DamagedError, match=f"store: model m1: object {name}"):
            store.get("m1", "back")
        with pytest.raises(DamagedError):
            load(store, "m1")
        assert not Path("back").exists()
    with pytest.raises(DamagedError, match=f"object {name} is missing"):
        store.gc()
    store.add("m0", "again")  # which repairs it
    store.verify()
    store.get("m1", "back")
    assert content("back") == content("m1")


def test_an_object_that_its_own_base_needs_is_repaired(store):
    path = object_of(store, "m0", "layer.0")  # m1 and m2 are differences from it
    store.remove("m0")
    for hurt in (path.read_bytes()[:-9], None):
        path.chmod(0o644)
        path.unlink() if hurt is None else path.write_bytes(hurt)
        store.add("m0")
        store.verify()
        for name in ("m0", "m1", "m2"):
            store.get(name, "back", overwrite=True)
            assert content("back") == content(name)
        store.remove("m0")


def test_an_object_under_another_name_is_found(store):
    one, other = object_of(store, "m0", "layer.1"), object_of(store, "m0", "layer.2")
    other.unlink()
    shutil.copy(one, other)
    with pytest.raises(DamagedError, match=r"is another one: its name is not its hash \(needed by m0, m1, m2\)"):
        store.verify()
    with pytest.raises(DamagedError, match=r"model m0: model\.safetensors has another SHA-256"):
        store.get("m0", "back")
    store.add("m0", "again")
    store.verify()


def test_a_damaged_list_of_a_model_is_named(store):
    path = Path("store/models/m1")
    path.chmod(0o644)
    whole = json.loads(path.read_text())
    others = (json.dumps({**whole, "files": files}) for files in ({"../x": {}}, {}))
    for hurt in ("", "{}", "[]", path.read_text()[:-40], *others):
        path.write_text(hurt)
        with pytest.raises(FormatError, match="store/models/m1"):
            store.get("m1", "back")
        with pytest.raises(FormatError):
            store.gc()
    assert store.get("m0", "back").raw > 0


WRONG_ROWS = [
    ["layer.1", "BF16", [1e999], 0, None],
    ["layer.1", "BF16", [200.0, 200], 0, None],
    ["layer.1", "BF16", [-200, -200], 0, None],
    ["layer.1", "BF16", [1] * 99, 0, None],
    ["layer.1", "BF16", 7, 0, None],
    ["layer.1", "BF16", [200, 200], [0], None],
    ["layer.1", "BF16", [200, 200], 0],
    [None, "BF16", [200, 200], 0, None],
]


@pytest.mark.parametrize("row", WRONG_ROWS, ids=str)
def test_a_list_of_impossible_tensors_is_refused(store, row):
    path = Path("store/models/m1")
    path.chmod(0o644)
    described = json.loads(path.read_text())
    rows = described["files"]["model.safetensors"]["tensors"]
    rows[1] = [rows[1][4] if value is None and place == 4 else value for place, value in enumerate(row)]
    path.write_text(json.dumps(described))
    with pytest.raises(DamagedError, match="store/models/m1: is damaged"):
        store.get("m1", "back")


def test_a_tensor_that_an_object_does_not_fit_is_not_loaded(store):
    path = Path("store/models/m1")
    path.chmod(0o644)
    described = json.loads(path.read_text())
    described["files"]["model.safetensors"]["tensors"][1][2] = [200, 100]
    path.write_text(json.dumps(described))
    with pytest.raises(DamagedError, match=r"'layer\.1': object \w+ has another size"):
        load(store, "m1")


def test_an_object_with_bytes_after_it_is_damaged():
    noise = torch.from_numpy(np.random.default_rng(0).integers(0, 256, 4000, np.uint8))
    save_file({"noise": noise}, "noise.safetensors")
    store = Store("store")
    store.add("noise.safetensors", "m0")
    path = object_of(store, "m0", "noise")
    path.chmod(0o644)
    path.write_bytes(path.read_bytes() + b"more")
    for read in (lambda: store.get("m0", "back"), lambda: load(store, "m0"), store.verify):
        with pytest.raises(DamagedError, match="is damaged"):
            read()


def test_a_base_is_found_by_name_dtype_and_shape(store):
    """Add a tensor whose name a model has, with another shape, which is no base of it."""
    forms = by_form(store.model("m0"))
    save_file({"layer.0": torch.zeros(3, 5), "other": torch.zeros(2)}, "small.safetensors")
    store.add("small.safetensors", "small")
    small = by_form(store.model("small"))
    assert set(small) == {("layer.0", "F32", (3, 5)), ("other", "F32", (2,))} and not set(small) & set(forms)
    assert all(store.objects.header(key).base is None for key in small.values())


def test_an_object_that_is_cut_off_in_its_header_is_damaged(store):
    """Cut an object in the spaces after its description, which is whole without them."""
    for path in (path for path in Path("store/objects").rglob("*") if path.is_file()):
        data, start = path.read_bytes(), objects._START.size
        text = data[start : start + objects._START.unpack(data[:start])[1]]
        if text != text.rstrip(b" "):
            path.chmod(0o644)
            path.write_bytes(data[:start] + text.rstrip(b" "))
            with pytest.raises(DamagedError, match="is damaged"):
                store.verify()
            return
    pytest.fail("no description has spaces after it")


@pytest.mark.parametrize("operation", ["add", "gc", "remove"])
def test_a_kill_at_any_step_loses_nothing(store, operation):
    model("m3", 900)
    if operation == "gc":
        store.add("m3", "unneeded")
        store.remove("unneeded")
    shutil.copytree("store", "before")
    step = {"add": "add(sys.argv[2])", "gc": "gc()", "remove": "remove('m1')"}[operation]
    for number in range(1, 400):
        shutil.rmtree("store")
        shutil.copytree("before", "store")
        if _killed(step, number):
            changed = Store("store")
            present = changed.names()
            assert set(present) >= {"m0", "m2"}
            for name in present:
                changed.get(name, "back", overwrite=True)
                assert content("back") == content(name)
            changed.gc()
            changed.verify()
            assert not any(Path("store/temporary").iterdir())
            if operation == "add" and "m3" not in present:
                changed.add("m3")
        else:
            break
    assert number > {"add": 10, "gc": 2, "remove": 1}[operation]


_CODE = """
import os, sys
from squeeze.packing.store import Store
left = int(sys.argv[1])
def audit(event, arguments):
    global left
    changes = event in ("os.rename", "os.link", "os.remove", "os.mkdir") or (
        event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
    )
    if changes and "store/" in str(arguments[0]):
        left -= 1
        if left == 0:
            os._exit(9)
store = Store("store")
sys.addaudithook(audit)
store.STEP
"""


def _killed(step, number):
    """Run an operation in a process that ends before its change number `number` of the disk; return whether it did."""
    pid = os.fork()
    if pid == 0:
        sys.argv = ["", str(number), "m3"]
        try:
            exec(_CODE.replace("STEP", step), {})
        except BaseException:
            os._exit(1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (0, 9)
    return code == 9


def test_a_real_kill_leaves_a_whole_store(store):
    model("m3", 900, tensors=9)
    code = "from squeeze.packing.store import Store; print('on', flush=True); Store('store').add('m3')"
    running = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    running.stdout.readline()
    running.send_signal(signal.SIGKILL)
    running.wait()
    running.stdout.close()
    store.gc()
    store.verify()
    assert set(store.names()) >= {"m0", "m1", "m2"}


def test_two_writers_and_a_collector_do_not_disturb_each_other(store):
    faults = []

    def work(first):
        try:
            for number in range(first, first + 3):
                Store("store").add(f"n{number}")
                Store("store").gc()
        except SqueezeError as error:
            faults.append(error)

    for number in range(6):
        model(f"n{number}", 10 * number)
    threads = [threading.Thread(target=work, args=(first,)) for first in (0, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    store.verify()
    for number in range(6):
        store.get(f"n{number}", "back", overwrite=True)
        assert content("back") == content(f"n{number}")


def test_mistakes_have_one_line(store):
    with pytest.raises(SqueezeError, match="exists"):
        store.add("m0")
    with pytest.raises(SqueezeError, match="exists"):
        store.get("m0", "m1")
    for name in ("", "a/b", ".x", "a\nb"):
        with pytest.raises(OptionError, match="expected a name"):
            store.add("m0", name)
    with pytest.raises(FormatError, match="not a store"):
        Store("m0").names()
    with pytest.raises(SqueezeError, match="is not a store and not empty"):
        Store("m0").add("m1")
    assert fails("store", "get", "store", "m9", "back") == "Error: store has no model 'm9': it has m0, m1, m2\n"


def test_the_commands(store):
    assert run("store", "add", "store", "m0", "--name", "m5", "--base", "m1").stdout.startswith("m0: ")
    added = json.loads(run("store", "add", "store", model("m6", 70), "--json").stdout)
    assert added["added"] < 0.1 * added["raw_size"]
    shown = run("store", "list", "store").stdout.splitlines()
    assert shown[0].split() == ["raw", "alone", "ratio", "model"]
    assert [line.split()[-1] for line in shown[1:]] == ["m0", "m1", "m2", "m5", "m6", "all"]
    listed = json.loads(run("store", "list", "store", "--json").stdout)
    assert [one["name"] for one in listed["models"]] == ["m0", "m1", "m2", "m5", "m6"]
    run("store", "get", "store", "m5", "back")
    assert content("back") == content("m0")
    run("store", "remove", "store", "m6")
    assert run("store", "gc", "store").stdout.startswith("store: deleted ")
    assert run("store", "verify", "store").stdout.endswith(" objects; OK\n")
    assert call("store").exit_code == 2
