"""Self-contained HTML pages: one file each, with its data, styles and scripts.

A page's template, `page.html`, and its parts are in the folder `assets` of its package; shared parts are in this
package's. The Content-Security-Policy of a page allows only the scripts of its template, by their digests, and no
requests. So text of a file cannot run or fetch anything.
"""

import base64
import hashlib
import html
import zlib
from collections.abc import Callable
from functools import cache
from typing import Any

import jinja2
from markupsafe import Markup

__all__ = ["frame", "packed", "render"]

_POLICY = "the policy of this page"  # stands in the head until the scripts are known
_RULES = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; script-src"

_FRAME = '<iframe srcdoc="{}" title="{}" sandbox="allow-scripts" style="{}"></iframe>'


def render(package: str, evaluates: bool = False, **values: Any) -> str:
    """Return the page of a package's template.

    Args:
        package: Package with `assets/page.html`. Its head has `{{ policy }}`, and its scripts are blocks `{% call
            script() %}`, which must not contain values of a file.
        evaluates: Whether a script creates functions from text, as Vega does.
        values: Values of the template.
    """
    sources = ["'unsafe-eval'"] if evaluates else []

    def script(kind: str = "", caller: Callable[[], str] = str) -> Markup:
        text = caller().replace("\r\n", "\n").replace("\r", "\n")  # as a browser reads it
        sources.append(f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'")
        of_kind = f' type="{kind}"' if kind else ""
        return Markup(f"<script{of_kind}>{text}</script>")

    policy = Markup(f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">')
    page = _template(package).render(policy=policy, script=script, **values)
    return _without_surrogates(page.replace(_POLICY, " ".join((_RULES, *sources)), 1))


def _without_surrogates(text: str) -> str:
    """Replace lone surrogates, which JSON can hold and UTF-8 cannot, by U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


@cache
def _template(package: str) -> jinja2.Template:
    """Load the template of a package's page."""
    loaders = [jinja2.PackageLoader(name, "assets") for name in (package, "squeeze.recipes.reports")]
    loader = jinja2.ChoiceLoader(loaders)
    environment = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("page.html")


def packed(data: bytes) -> str:
    """Return data as zlib in base64, as `inflate` in base.js takes them."""
    return base64.b64encode(zlib.compress(data, 6)).decode()


def frame(page: str, title: str) -> str:
    """Return HTML that shows a page in an iframe, for notebooks."""
    style = "width: 100%; height: 720px; border: 0; border-radius: 8px"
    return _FRAME.format(html.escape(page, quote=True), html.escape(title, quote=True), style)
