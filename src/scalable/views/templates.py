"""HTML fragments for notebooks, from templates that make each string harmless and escape it."""

from __future__ import annotations

import functools
from importlib import resources
from typing import TYPE_CHECKING, Any

from scalable.harmless import one_line
from scalable.palette import css_variables
from scalable.views.tables import fitted

if TYPE_CHECKING:
    from jinja2 import Environment

#: Maximum cells of a name, and of a longer text.
_NAME, _TEXT = 90, 2_000


def in_notebook(template: str, **values: Any) -> str:
    """Return a template file of this package, filled with values, as a notebook fragment.
    It has its own styles and no scripts.
    """
    body = _environment().get_template(template).render(**values)
    return f'<div class="sn"><style>{_style()}</style>{body}</div>'


@functools.cache
def _environment() -> Environment:
    # A session that shows no HTML starts without the template engine.
    from jinja2 import Environment, FunctionLoader, StrictUndefined
    from markupsafe import Markup

    def finalized(value: Any) -> Any:
        is_text = isinstance(value, str) and not isinstance(value, Markup)
        return one_line(value) if is_text else value

    environment = Environment(
        loader=FunctionLoader(_text),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=finalized,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "name": lambda value: fitted(value, _NAME),
        "text": lambda value: fitted(value, _TEXT),
    }
    environment.globals["parts"] = environment.get_template("parts.html").module
    return environment


@functools.cache
def _style() -> str:
    """Return the rules for light and dark themes, which override the notebook's own rules."""
    rules = _text("notebook.css").replace(".sn ", ".sn" * 3 + " ").replace("\n", "")
    return f"{css_variables()}{rules}"


def _text(name: str) -> str:
    return resources.files(__package__ or "").joinpath(name).read_text(encoding="utf-8")
