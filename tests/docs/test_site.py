"""The site builds without a warning, and loads nothing from other sites."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

_ELSEWHERE = re.compile(r'<(?:script|link|img|iframe)[^>]+(?:src|href)="(https?:)?//[^"]+"')


@pytest.mark.slow
def test_site_builds(tmp_path: Path):
    pytest.importorskip("mkdocs", reason="`make docs` installs what builds the site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert pages
    assert [page for page in pages if _ELSEWHERE.search(page.read_text("utf-8"))] == []
