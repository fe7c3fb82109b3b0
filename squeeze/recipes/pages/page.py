"""Pages that open anywhere: one HTML file each, with its data, styles and scripts in it.

A page's template, `page.html`, and what it includes lie in the folder `assets` of its package; what all include lies in
this one's.
"""

import base64
import html
import zlib
from functools import cache

import jinja2

__all__ = ["frame", "packed", "template"]

_FRAME = '<iframe srcdoc="{}" title="{}" sandbox="allow-scripts" style="{}"></iframe>'


@cache
def template(package: str) -> jinja2.Template:
    """The template of a package's page."""
    loaders = [jinja2.PackageLoader(name, "assets") for name in (package, "squeeze.recipes.pages")]
    loader = jinja2.ChoiceLoader(loaders)
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.get_template("page.html")


def packed(data: bytes) -> str:
    """Data as base.js's `inflate` takes them: compressed by zlib, as base64."""
    return base64.b64encode(zlib.compress(data, 6)).decode()


def frame(page: str, title: str) -> str:
    """A page within another one, as a notebook shows it."""
    style = "width: 100%; height: 720px; border: 0; border-radius: 8px"
    return _FRAME.format(html.escape(page, quote=True), html.escape(title, quote=True), style)
