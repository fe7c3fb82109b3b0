"""Check prose by the rules of CONTRIBUTING.md: docstrings, help, errors and pages.

`python -m tests.words PATH...` lists what the rules forbid in Python files, Markdown files, or folders of them.
"""

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

LONGEST = 30  # words of a sentence
FRAGMENT = re.compile(
    r"(Of|As|Where|What|Whether|Which|Who|Whose|How|That|Those|When|In|From|By|Or|And|But|With|Without|For|To|At|On)\b"
)
NOUN = re.compile(r"(The|A|An)\b")
FORBIDDEN = {
    "starts with 'Of'": re.compile(r"(?:^|[.:!?] )Of "),
    "'so many' or 'so much': say N": re.compile(r"\bso (?:many|much)\b", re.IGNORECASE),
    "'is none': say 'not a', 'invalid'": re.compile(r"\b(?:is|are) none\b"),
    "'beside': say 'compared with', 'next to'": re.compile(r"\bbeside\b", re.IGNORECASE),
    "'all else': say 'every other'": re.compile(
        r"\b(?:all|anything|everything) else\b(?= (?:is|as|goes))|\ball else\b"
    ),
    "'stands': say 'is'": re.compile(r"\bstands\b(?! for\b| in for\b)"),
}
# Code counts as one word. A full stop ends a sentence if white space and no small letter follow.
CODE = re.compile(r"``.+?``|`[^`]+`", re.DOTALL)
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
END = re.compile(r"(?<=[.!?])[)\"']?\s+(?![a-z])")
ARGUMENT = re.compile(r"    \*{0,2}\w+(?:, \w+)*: ")  # a line of an Args list
WORD = re.compile(r"[^\W_]\S*")


class Fault(NamedTuple):
    """A place that a rule forbids."""

    path: Path
    line: int
    kind: str  # "docstring", "string" or "page"
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.text[:100]}"


@cache
def faults(path: Path) -> list[Fault]:
    """Check one file by its suffix."""
    text = path.read_text("utf-8")
    if path.suffix == ".py":
        return [Fault(path, *found) for found in _of_python(ast.parse(text))]
    return [
        Fault(path, line, "page", rule, sentence)
        for line, paragraph in paragraphs(text)
        for rule, sentence in _of_prose(paragraph)
    ]


def files(paths: list[Path]) -> list[Path]:
    """List the Python and Markdown files of these files and folders."""
    found = []
    for path in paths:
        inside = path.rglob("*") if path.is_dir() else [path]
        found += [file for file in inside if file.suffix in (".py", ".md")]
    return sorted(found)


def sentences(prose: str) -> list[str]:
    """Split prose into sentences."""
    return [sentence for sentence in END.split(prose.strip()) if sentence]


def length(sentence: str) -> int:
    """Count the words of a sentence."""
    return len(WORD.findall(CODE.sub("code", LINK.sub(r"\1", sentence))))


def paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Yield a page's paragraphs and list items with their first lines, without code, tables, headings and comments."""
    text = re.sub(r"<!--.*?-->", lambda found: "\n" * found[0].count("\n"), text, flags=re.DOTALL)
    fence, held, first = "", [], 0
    for number, line in enumerate([*text.split("\n"), ""], 1):
        bare = line.strip()
        opens = re.match(r"(```+|~~~+)", bare)
        if opens and (not fence or bare.startswith(fence)):
            fence = "" if fence else opens[1]
        aside = bool(
            fence or opens or not bare or bare[0] in "|#<" or line.startswith("        ") or bare[:3] in ("---", "***")
        )
        item = re.match(r"(?:[-*]|\d+\.) |!!!|>", bare) or (ARGUMENT.match(line) if line[:4] == "    " else None)
        if (aside or item) and held:
            yield first, " ".join(held)
            held = []
        if not aside:
            first = first if held else number
            held.append(item.string[item.end() :].strip() if item else bare)


def _of_python(tree: ast.Module) -> Iterator[tuple[int, str, str, str]]:
    documented = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            doc = ast.get_docstring(node)
            if doc:
                documented.add(id(node.body[0].value))
                yield from ((node.body[0].lineno, "docstring", *found) for found in _of_docstring(node, doc))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in documented and _is_prose(node.value):
            yield from ((node.lineno, "string", *found) for found in _of_prose(node.value))


def _is_prose(value: object) -> bool:
    return isinstance(value, str) and len(value.split()) > 2 and "\n\n" not in value


def _of_docstring(node: ast.AST, doc: str) -> Iterator[tuple[str, str]]:
    if FRAGMENT.match(doc):
        yield "a fragment: begin with a verb", doc
    elif NOUN.match(doc) and isinstance(node, ast.FunctionDef) and not _is_property(node):
        yield "no verb at the start", doc
    for _, paragraph in paragraphs(doc):
        yield from _of_prose(paragraph)


def _is_property(node: ast.FunctionDef) -> bool:
    names = {ast.unparse(decorator).partition("(")[0].rpartition(".")[2] for decorator in node.decorator_list}
    return bool(names & {"property", "cached_property"})


def _of_prose(prose: str) -> Iterator[tuple[str, str]]:
    plain = CODE.sub("code", prose)
    for rule, pattern in FORBIDDEN.items():
        if found := pattern.search(plain):
            yield rule, plain[max(found.start() - 20, 0) :]
    for sentence in sentences(prose):
        if length(sentence) > LONGEST:
            yield f"{length(sentence)} words", sentence


if __name__ == "__main__":
    everything = [fault for path in files([Path(name) for name in sys.argv[1:]]) for fault in faults(path)]
    print(*everything, sep="\n")
    print(f"{len(everything)} faults", file=sys.stderr)
