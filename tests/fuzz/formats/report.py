"""The JSON that commands print, of which pages are made."""

import json
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from squeeze.errors import FormatError
from squeeze.recipes.reports import page as reports_page
from tests.fuzz import mutations
from tests.fuzz.judging import SAME, TRUE, Wrong, one_of
from tests.makers import reports
from tests.makers.command import call


@dataclass(frozen=True)
class Case:
    data: bytes


class Report:
    """Reports of a model of one block, alone and by lines."""

    seconds = 0.05

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.samples: list[Any] = [reports.model(blocks=1), [reports.model(blocks=1), reports.model(bits=3, blocks=1)]]
        self.known = [json.dumps(sample).encode() for sample in self.samples]
        for number, data in enumerate(self.known):
            (box := folder / str(number)).mkdir()
            self.read(Case(data), box)

    def mutate(self, random: Random) -> Case:
        number = random.randrange(len(self.samples))
        data = one_of(
            random,
            (2, lambda r: mutations.damaged(self.known[number], r)),
            (
                6,
                lambda r: mutations.to_json(mutations.mutated(self.samples[number], r)).encode(
                    "utf-8", "surrogatepass"
                ),
            ),
            (1, lambda r: self.known[0] + b"\n" + mutations.damaged(self.known[0], r) + b"\n"),
            (1, lambda r: r.choice((b"[" * 100_000, b'{"layers":' * 99_000, b"[" + b"[]," * 300_000 + b"1]", b""))),
        )
        return Case(data)

    def read(self, case: Case, folder: Path) -> str:
        path, page = folder / "a.json", folder / "page.html"
        path.write_bytes(case.data)
        result = call("report", "-q", path, "-o", page)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        if result.exit_code:
            if page.exists():
                raise Wrong("a page of what was refused")
            raise FormatError(result.stderr.strip())
        reports_page.read(path)
        return SAME if case.data in self.known else TRUE


FORMAT = Report
