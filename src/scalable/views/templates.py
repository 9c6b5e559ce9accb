"""Templates that escape every string, and HTML fragments for notebooks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib import resources
from typing import TYPE_CHECKING, Any

from scalable.palette import css_variables
from scalable.views.tables import fitted, one_line

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

#: Maximum characters of a name, and of a longer text.
_NAME, _TEXT = 90, 2_000


def escaping_environment(clean: Callable[[str], str]) -> Environment:
    """Return an environment whose templates clean and escape every string."""
    # A session that shows no HTML starts without the template engine.
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    def finalized(value: Any) -> Any:
        return clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    return Environment(
        autoescape=True,
        undefined=StrictUndefined,
        finalize=finalized,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def trusted(text: str) -> Markup:
    """Mark a string as safe HTML. It must be this package's, or escaped by a template."""
    from markupsafe import Markup

    return Markup(text)  # noqa: S704


def in_notebook(body: str, kind: str = "") -> str:
    """Return escaped HTML as a notebook fragment, with styles but without scripts."""
    return f'<div class="sn {kind}"><style>{notebook_style()}</style>{body}</div>'


def render(template: str, **values: Any) -> Markup:
    """Return a template file of this package filled with escaped values."""
    return trusted(_template(template).render(**values))


@functools.cache
def notebook_style() -> str:
    """Return the style rules of notebook fragments, for light and dark themes."""
    return f"{css_variables()}{above_notebooks('sn', package_text('notebook.css'))}"


def above_notebooks(name: str, rules: str) -> str:
    """Return rules of the CSS class ``name`` that override the notebook's own rules."""
    return rules.replace(f".{name} ", f".{name}" * 3 + " ").replace("\n", "")


def package_text(name: str) -> str:
    """Return the content of a text file of this package."""
    return resources.files(__package__ or "").joinpath(name).read_text(encoding="utf-8")


@functools.cache
def _template(name: str) -> Any:
    environment = escaping_environment(one_line)
    environment.filters |= {
        "name": lambda value: fitted(value, _NAME),
        "text": lambda value: fitted(value, _TEXT),
    }
    environment.globals["parts"] = environment.from_string(package_text("parts.html")).module
    return environment.from_string(package_text(name))
