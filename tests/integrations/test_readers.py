"""Other libraries read .sqz: frames of polars, datasets of Hugging Face, and arrays of zarr."""

import json
from pathlib import Path

import pytest

import squeeze
from tests.makers.remote import Store

fsspec = pytest.importorskip("fsspec")
pytestmark = pytest.mark.usefixtures("in_folder")
ROWS = [{"number": number, "word": f"word {number}"} for number in range(300)]


@pytest.fixture
def written():
    """Write rows as JSON and as CSV, to the disk and to a store."""
    import squeeze.integrations.fsspec  # registers the codec

    texts = {
        "rows.jsonl": "".join(json.dumps(row) + "\n" for row in ROWS),
        "rows.csv": "number,word\n" + "".join(f"{row['number']},{row['word']}\n" for row in ROWS),
    }
    Store.reset()
    for name, text in texts.items():
        coded = squeeze.compress(text.encode(), 1)
        Path(f"{name}.sqz").write_bytes(coded)
        Store.put(f"bucket/{name}.sqz", coded)


@pytest.mark.parametrize("place", ["", "fake://bucket/"])
def test_polars_reads_json_and_csv(written, place):
    polars = pytest.importorskip("polars", reason="polars is not installed")
    for name, read in (("rows.jsonl", polars.read_ndjson), ("rows.csv", polars.read_csv)):
        with fsspec.open(f"{place}{name}.sqz", compression="infer") as file:
            assert read(file).to_dicts() == ROWS
        with fsspec.open(f"sqz://{name}::{place}{name}.sqz") as file:
            assert read(file).to_dicts() == ROWS


@pytest.mark.parametrize("place", ["", "fake://bucket/"])
@pytest.mark.parametrize("streaming", [True, False])
def test_datasets_stream_and_load_rows(written, tmp_path, monkeypatch, place, streaming):
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)  # nothing is asked of the hub
    datasets.disable_progress_bars()
    for name, kind in (("rows.jsonl", "json"), ("rows.csv", "csv")):
        url = f"sqz://{name}::{place or f'{tmp_path}/'}{name}.sqz"
        options = {"split": "train", "streaming": streaming, "cache_dir": str(tmp_path / "cache")}
        assert list(datasets.load_dataset(kind, data_files=url, **options)) == ROWS


@pytest.mark.parametrize(("version", "chunk"), [(2, "0.0"), (3, "c/0/0")])
def test_zarr_stores_chunks_in_both_formats(version, chunk):
    zarr = pytest.importorskip("zarr", "3.1", reason="zarr is not installed")
    import numcodecs
    import numpy as np

    from squeeze.integrations.numcodecs import Squeeze
    from squeeze.integrations.zarr import SqueezeCodec

    numcodecs.register_codec(Squeeze)  # as an installed squeeze does both by itself
    zarr.registry.register_codec("squeeze", SqueezeCodec)
    codec = Squeeze(1) if version == 2 else SqueezeCodec(1)
    values = np.arange(20 * 30, dtype="int32").reshape(20, 30)
    options = {"shape": values.shape, "chunks": (7, 10), "dtype": "int32", "zarr_format": version}
    zarr.create_array("array", compressors=codec, **options)[:] = values
    array = zarr.open_array("array", mode="r+")
    assert array.metadata.zarr_format == version
    assert array.compressors == (codec,)
    assert (array[:] == values).all() and (array[5:9, 8:12] == values[5:9, 8:12]).all()
    first = Path("array", chunk).read_bytes()
    assert squeeze.decompress(first) == np.ascontiguousarray(values[:7, :10]).tobytes()
    array[3:5] = 0
    assert array[:].sum() == values.sum() - values[3:5].sum()
    Path("array", chunk).write_bytes(first[:-1])
    with pytest.raises(squeeze.SqueezeError):
        zarr.open_array("array", mode="r")[:7, :10]


def test_a_codec_of_zarr_has_a_level_and_nothing_else():
    pytest.importorskip("zarr", "3.1", reason="zarr is not installed")
    from squeeze.integrations.zarr import SqueezeCodec

    described = SqueezeCodec(2).to_dict()
    assert SqueezeCodec.from_dict(described) == SqueezeCodec(2)
    with pytest.raises(squeeze.FormatError, match="needs a newer squeeze"):
        SqueezeCodec.from_dict({**described, "configuration": {"level": 1, "more": 2}})


@pytest.mark.parametrize("level", [0, 44, "3", True, None])
def test_levels_of_codecs_are_checked_when_they_are_made(level):
    pytest.importorskip("zarr", "3.1", reason="zarr is not installed")
    from squeeze.integrations.numcodecs import Squeeze
    from squeeze.integrations.zarr import SqueezeCodec

    for codec in (SqueezeCodec, Squeeze):
        with pytest.raises(squeeze.LevelError, match=r"^level .* from 1 to 9"):
            codec(level=level)
    with pytest.raises(squeeze.LevelError):
        SqueezeCodec.from_dict({"name": "squeeze", "configuration": {"level": level}})
