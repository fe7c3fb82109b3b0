"""Repositories of packed models: from a hub of this test, from the cache alone, and in transformers by their id."""

import json
import shutil
from contextlib import contextmanager
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import save_file

import squeeze
from squeeze.errors import OptionError, SqueezeError
from squeeze.packing.dense import dense
from squeeze.system.hub import Repository, local_copy, snapshot
from squeeze.system.storage import path_of

pytestmark = [pytest.mark.usefixtures("in_folder"), pytest.mark.filterwarnings("ignore")]
COMMIT = "a" * 40


class Hub(BaseHTTPRequestHandler):
    """The parts of the hub's API that a snapshot needs, for the repository org/packed in the folder `packed`."""

    asked: list[str] = []  # noqa: RUF012

    def log_message(self, *arguments):
        pass

    def do_HEAD(self):
        self.answer(with_body=False)

    def do_GET(self):
        self.answer(with_body=True)

    def answer(self, with_body):
        self.asked.append(f"{self.command} {self.path}")
        names = sorted(path.relative_to("packed").as_posix() for path in Path("packed").rglob("*") if path.is_file())
        path, _, _ = self.path.partition("?")
        if path.startswith("/api/models/org/packed/revision/"):
            return self.send(
                json.dumps({"id": "org/packed", "sha": COMMIT, "siblings": [{"rfilename": n} for n in names]})
            )
        if path.startswith("/api/models/org/packed/tree/"):
            sizes = {name: Path("packed", name).stat().st_size for name in names}
            return self.send(
                json.dumps([{"type": "file", "path": n, "size": s, "oid": "b" * 40} for n, s in sizes.items()])
            )
        prefix, _, name = path.partition(f"/resolve/{COMMIT}/")
        if prefix == "/org/packed" and name in names:
            return self.send(Path("packed", name).read_bytes(), with_body, COMMIT)
        return self.send("{}", with_body, status=404)

    def send(self, body, with_body=True, commit="", status=200):
        data = body if isinstance(body, bytes) else body.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        if commit:
            self.send_header("ETag", f'"{sha256(data).hexdigest()}"')
            self.send_header("X-Repo-Commit", commit)
        elif status == 404:
            self.send_header("X-Error-Code", "RepoNotFound")
        self.end_headers()
        if with_body:
            self.wfile.write(data)


@contextmanager
def hub(patch):
    """Serve the repository on this machine, and let huggingface_hub ask there."""
    Hub.asked = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    patch.setattr(constants, "ENDPOINT", url)
    patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")
    patch.setattr(constants, "HF_HUB_OFFLINE", False)
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture(autouse=True)
def cache(monkeypatch):
    """Set a cache of this test, which must not ask any hub."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", "cache")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def packed() -> dict[str, torch.Tensor]:
    """Write a packed folder of two shards, of which one repeats a tensor of the other."""
    torch.manual_seed(0)
    tensors = {"a": torch.randn(300, 200).bfloat16(), "b": torch.randn(64, 64)}
    tensors["head"] = tensors["a"].clone()
    Path("model").mkdir()
    places = {"a": "model-1.safetensors", "b": "model-1.safetensors", "head": "model-2.safetensors"}
    for place in ("model-1.safetensors", "model-2.safetensors"):
        save_file({name: tensors[name] for name in tensors if places[name] == place}, f"model/{place}")
    Path("model/model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    Path("model/config.json").write_text('{"model_type": "llama"}')
    squeeze.pack("model", "packed")
    return tensors


def cached(name: str = "org--packed") -> Path:
    """Put the packed folder into the cache."""
    target = Path(f"cache/models--{name}/snapshots/{COMMIT}")
    shutil.copytree("packed", target)
    refs = target.parent.parent / "refs"
    refs.mkdir()
    (refs / "main").write_text(COMMIT)
    return target


def same(found, expected) -> bool:
    return found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_repository_is_downloaded_once(monkeypatch):
    expected = packed()
    with hub(monkeypatch):
        assert same(squeeze.load("hf://org/packed"), expected)
        asked = len(Hub.asked)
        assert any("squeeze.json" in one for one in Hub.asked)
        squeeze.unpack("hf://org/packed@main", "back")
        assert not [one for one in Hub.asked[asked:] if one.startswith("GET /org")]
        with pytest.raises(SqueezeError, match="org/other: "):
            squeeze.load("hf://org/other")
    assert Path("back/model-2.safetensors").read_bytes() == Path("model/model-2.safetensors").read_bytes()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert same(dense("hf://org/packed"), expected)


def test_offline_only_the_cache_is_read(monkeypatch):
    expected = packed()
    cached()
    assert same(squeeze.load("hf://org/packed"), expected)
    squeeze.unpack("hf://org/packed", "back")
    squeeze.verify("hf://org/packed")
    shutil.rmtree("cache")
    shutil.move("packed", "kept")
    shutil.move("model", "packed")  # one that is not packed
    cached()
    squeeze.pack("hf://org/packed", "again")
    assert Path("again/squeeze.json").read_bytes() == Path("kept/squeeze.json").read_bytes()
    with pytest.raises(SqueezeError, match="HF_HUB_OFFLINE is set, and the cache has no such snapshot"):
        squeeze.load("hf://org/other")
    with pytest.raises(SqueezeError, match="HF_HUB_OFFLINE"):
        squeeze.pack("hf://org/packed@v2", "more")


def test_shards_that_repeat_each_other_need_no_manifest():
    expected = packed()
    (cached() / "squeeze.json").unlink()  # as transformers downloads a repository
    assert same(dense(snapshot("org/packed")), expected)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("hf://org/model", ("org/model", None, "")),
        ("hf://models/org/model/sub/folder", ("org/model", None, "sub/folder")),
        ("hf://org/model@v1.0", ("org/model", "v1.0", "")),
        ("hf://org/model@refs/pr/3/sub", ("org/model", "refs/pr/3", "sub")),
        ("hf://org/model@feature%2Fx/sub", ("org/model", "feature/x", "sub")),
    ],
)
def test_addresses(url, expected):
    found = Repository.of(url)
    assert (found.name, found.revision, found.path) == expected


@pytest.mark.parametrize("url", ["hf://model", "hf://datasets/org/data", "hf://org/model@", "hf://spaces/org/app"])
def test_other_addresses_are_refused(url):
    with pytest.raises(OptionError, match="expected hf://OWNER/MODEL"):
        Repository.of(url)


def test_what_a_repository_does_not_have():
    packed()
    cached()
    assert local_copy(path_of("hf://org/packed/config.json")).is_file()
    for path in ("none.json", "../../refs/main"):
        with pytest.raises(SqueezeError):
            local_copy(path_of(f"hf://org/packed/{path}"))
    assert local_copy(path_of("packed")) == Path("packed")
