"""Hooks of MkDocs: roles of reStructuredText in docstrings become plain code."""

import re
from typing import Any

ROLE = re.compile(r":(?:meth|class|func|attr|mod|exc|data):<code>[~.]?(.*?)</code>")


def on_page_content(html: str, **_: Any) -> str:
    """Return a page's content without the names of roles."""
    return ROLE.sub(r"<code>\1</code>", html)
