"""Report of a run as the page of the dashboard with its data: one self-contained file.
All strings of the run are in a block of data: the page draws them as text. Its policy forbids all
requests, and all scripts and styles but its own.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import html
import json
from collections.abc import Mapping
from importlib import resources
from typing import Any

from scalable.harmless import one_line
from scalable.palette import css_variables

#: Files of the dashboard's page.
_FILES = ("watch", "dashboard", "static")


def render_page(document: Mapping[str, Any]) -> str:
    """Return the page with the data that it draws."""
    style, script = css_variables() + _file("page.css"), _file("timeline.js") + _file("page.js")
    policy = (
        f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    head = (
        f'<meta http-equiv="Content-Security-Policy" content="{html.escape(policy)}">\n'
        f"<style>{style}</style>\n"
        f'<script type="application/json" id="data">{_data(document)}</script>'
    )
    name = html.escape(one_line(document["name"])).encode("ascii", "xmlcharrefreplace").decode()
    parts = {
        "<title>scalable</title>": f"<title>{name}</title>",
        '<link rel="stylesheet" href="page.css">': head,
        '<script type="module" src="page.js"></script>': f'<script type="module">{script}</script>',
    }
    page = _file("page.html")
    for written, own in parts.items():
        before, _, after = page.partition(written)
        page = f"{before}{own}{after}"
    return page


def render_part(document: Mapping[str, Any]) -> str:
    """Return the page as a part of another page, such as a notebook, which it cannot reach."""
    whole = html.escape(render_page(document))
    return (
        '<iframe title="Report of a run" style="width:100%;height:44rem;border:0;resize:vertical" '
        f'sandbox="allow-scripts" srcdoc="{whole}"></iframe>'
    )


def _data(document: Mapping[str, Any]) -> str:
    """Return JSON of printable ASCII that cannot end its element or open another one."""
    written = json.dumps(document, separators=(",", ":"), allow_nan=False)
    return written.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


@functools.cache
def _file(name: str) -> str:
    place = resources.files("scalable").joinpath(*_FILES, name)
    return place.read_text(encoding="utf-8")


def _digest(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
