"""The Content-Security-Policy of pages: the scripts of the template run, and nothing else."""

import base64
import hashlib
import re
from html.parser import HTMLParser

import pytest

import squeeze
from squeeze.recipes.reports.page import render
from tests.makers import inputs, reports


class Page(HTMLParser):
    """The policy of a page, what precedes it, and its scripts that run."""

    def __init__(self, text: str):
        super().__init__()
        self.policy, self.before, self.scripts, self._runs = "", [], [], False
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        told = dict(attributes)
        if told.get("http-equiv") == "Content-Security-Policy":
            self.policy = told["content"]
        elif not self.policy:
            self.before.append(tag)
        if tag == "script" and told.get("type", "module") == "module":
            self._runs = True

    def handle_data(self, data):
        if self._runs:
            self.scripts.append(data)

    def handle_endtag(self, tag):
        self._runs = False


def explanation() -> str:
    return squeeze.explain(inputs.words(500) + b"</script><script>alert(1)</script>", 1).to_html()


def report() -> str:
    pytest.importorskip("vl_convert", reason="vl-convert-python is not installed")
    from squeeze.recipes.reports.page import shown

    return render(shown([reports.model()]))


@pytest.mark.parametrize(("made", "count"), [(explanation, 1), (report, 2)])
def test_the_policy_names_the_scripts_of_the_page_alone(made, count):
    page = Page(made())
    rules = dict(rule.strip().split(" ", 1) for rule in page.policy.split(";"))
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in page.scripts]
    assert len(page.scripts) == count
    assert re.findall(r"'sha256-([^']+)'", rules["script-src"]) == digests
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    assert "unsafe-inline" not in rules["script-src"] and ("unsafe-eval" in rules["script-src"]) == (count == 2)
    assert set(page.before) <= {"html", "head", "meta"}
