"""The pages of the documentation and their code blocks."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
GUIDES = sorted(page for folder in ("files", "checkpoints", "models") for page in DOCS.glob(f"{folder}/*.md"))
LESSONS = [ROOT / "README.md", DOCS / "index.md", DOCS / "install.md", *GUIDES, DOCS / "kv.md"]
_BLOCK = re.compile(r"(?:<!-- ((?:not run: |tested with )[^>]*?) -->\n)?^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_INSTEAD = re.compile(r"tested with (.+) in place of (.+)", re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Args:
        language: language after the fence
        code: lines of code
        line: number of the first line of code
        comment: text of the HTML comment before the block
    """

    language: str
    code: str
    line: int
    comment: str

    @property
    def is_run(self) -> bool:
        return not self.comment.startswith("not run: ")

    @property
    def tested(self) -> str:
        """The code that tests run: a comment may name quicker options."""
        instead = _INSTEAD.fullmatch(self.comment)
        if instead is None:
            return self.code
        quick, slow = instead.groups()
        assert slow in self.code, f"line {self.line}: the comment before it names {slow!r}, which is not in the block"
        return self.code.replace(slow, quick)


def blocks(page: Path) -> list[Block]:
    text = page.read_text("utf-8")
    return [
        Block(found[2], found[3], text.count("\n", 0, found.start(3)) + 1, found[1] or "")
        for found in _BLOCK.finditer(text)
    ]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))
