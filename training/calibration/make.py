"""Make the built-in calibration set: `python -m training.calibration.make [--sources FOLDER]`.

With --sources, which has the git directories of SOURCES as FOLDER/OWNER+NAME/repo, the text is made anew:
training/calibration/text.txt. Then it is compressed to squeeze/recipes/calibration.sqz, which is what is installed.
"""

import argparse
import itertools
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import squeeze
from training.calibration.turns import Turns, conversations
from training.generate import records
from training.text import plain, tree

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
TEXT, PACKED = HERE / "text.txt", ROOT / "squeeze" / "recipes" / "calibration.sqz"
SOURCES = {  # commits and chapters of Standard Ebooks, CC0-1.0
    "standardebooks+benjamin-franklin_the-autobiography-of-benjamin-franklin": (
        "ff5d6bec9a260f1f5e0ed216d97126f388a60d7c",
        (2, 3, 8, 12),
    ),
    "standardebooks+charles-darwin_the-voyage-of-the-beagle": (
        "4ad3b795abbb155e21c100d17d0b4d3ed0e34c8a",
        (1, 5, 10, 17),
    ),
}
CODE = (  # of this project, Apache-2.0
    *("quant/gptq.py", "prune/sparsegpt.py", "system/documents.py", "numerics/trie.py", "options.py"),
    *("recipes/reports/assets/charts.js", "recipes/reports/assets/page.css"),
)
PIECE = 2500  # characters of one kind before the next
PROSE, TABLES, TURNS = 60_000, 30_000, 80_000  # characters: of each book, of tables, of conversations
QUESTION, ANSWER = "User: ", "Assistant: "


def text(sources: Path) -> str:
    """Return the whole text, pieces of all kinds in turn."""
    kinds = [*(_book(sources, name) for name in SOURCES), _code(), _tables(), _turns(), _languages()]
    pieces = [list(_pieces(kind)) for kind in kinds]
    longest = max(map(len, pieces))
    placed = sorted(
        ((number + 0.5) / len(kind) * longest, place, piece)
        for place, kind in enumerate(pieces)
        for number, piece in enumerate(kind)
    )
    return "\n\n".join(piece.strip("\n") for _, _, piece in placed) + "\n"


def _pieces(whole: str) -> Iterator[str]:
    """Yield pieces of whole paragraphs."""
    piece = ""
    for paragraph in whole.split("\n\n"):
        piece += paragraph + "\n\n"
        if len(piece) >= PIECE:
            yield piece
            piece = ""
    if piece.strip():
        yield piece


def _book(sources: Path, name: str) -> str:
    commit, chapters = SOURCES[name]
    found = []
    for number in chapters:
        blob = f"{commit}:src/epub/text/chapter-{number}.xhtml"
        git = ["git", "--git-dir", str(sources / name / "repo"), "show", blob]
        element = tree(subprocess.run(git, check=True, capture_output=True).stdout)
        assert element is not None, blob
        found.append(plain(element))
    return "\n\n".join(found)[:PROSE].rpartition("\n\n")[0]


def _code() -> str:
    return "\n\n".join((ROOT / "squeeze" / name).read_text("utf-8") for name in CODE)


def _tables() -> str:
    documents = itertools.chain.from_iterable(zip(records.tables(3), records.records(3), strict=False))
    found: list[str] = []
    while sum(map(len, found)) < TABLES:
        _, content = next(documents)
        found.append(content.decode("utf-8", "replace")[: TABLES // 12].rpartition("\n")[0])
    return "\n\n".join(found)


def _turns() -> str:
    found: list[str] = []
    for turns in conversations(5):
        found.append(written(turns))
        if sum(map(len, found)) > TURNS:
            return "\n\n".join(found)
    raise AssertionError


def written(turns: Turns) -> str:
    """Return a conversation as text, a line or more for each turn."""
    return "\n".join(f"{QUESTION}{question}\n{ANSWER}{answer}" for question, answer in turns)


def _languages() -> str:
    texts = tomllib.loads((HERE / "languages.toml").read_text("utf-8"))
    return "\n\n".join(value.strip() for value in texts.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--sources", type=Path, metavar="FOLDER", help="make the text anew of these git directories")
    sources = parser.parse_args().sources
    if sources:
        TEXT.write_text(text(sources), "utf-8")
    packed = squeeze.compress(TEXT.read_bytes(), level=3)
    assert squeeze.decompress(packed) == TEXT.read_bytes()
    PACKED.write_bytes(packed)
    print(f"{TEXT.stat().st_size:,} -> {len(packed):,} bytes")


if __name__ == "__main__":
    main()
