"""The templates of the report, and the filters that neutralize text from outside.

Defines `rendered`. The key insight: a target's text is untrusted, and each form has its own escaping rules. jinja2
escapes HTML pages; a filter escapes Markdown. In both, a control character becomes a visible sign.
"""

from __future__ import annotations

import re
from typing import Any

import jinja2

from conformance.report.escape import escape_control_characters


def code(text: str) -> str:
    """Text between backticks, also in a Markdown table cell."""
    return re.sub(r"[`|<>\x00-\x1f\x7f]", " ", text)


def cell(text: str) -> str:
    """Text for a Markdown table cell, without markup, links or mentions."""
    text = re.sub(r"[\x00-\x1f\x7f-\x9f]+", " ", text)
    return re.sub(r"([\\`*_{}\[\]()<>#+!|@~$&-])", lambda match: f"&#{ord(match[1])};", text)


def quoted(text: Any) -> str:
    """External text in one line as inline code that it cannot end, so that it starts no tag, link or mention."""
    flat = escape_control_characters(" ".join(str(text).split())[:300])
    marks = "`" * (1 + max(map(len, re.findall("`+", flat)), default=0))
    return f"{marks} {flat} {marks}" if "`" in flat else f"`{flat}`"


def fenced(text: str, language: str = "") -> str:
    """Text in a code fence that it cannot end."""
    fence = "```"
    while fence in text:
        fence += "`"
    return "\n".join([fence + language, *text.splitlines(), fence])


def _source(name: str) -> str:
    return _LOADER.get_source(_ENVIRONMENT, name)[0]


_LOADER = jinja2.PackageLoader("conformance.report")
_ENVIRONMENT = jinja2.Environment(
    loader=_LOADER,
    autoescape=lambda name: ".html." in (name or ".html."),
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
    finalize=lambda value: escape_control_characters(value) if type(value) is str else value,
)
_ENVIRONMENT.globals["source"] = _source
_ENVIRONMENT.filters |= {"code": code, "cell": cell, "short": lambda text: cell(text[:300])}
_ENVIRONMENT.filters |= {"quoted": quoted, "fenced": fenced}


def rendered(template: str, **values: Any) -> str:
    """Render a template with these values."""
    return _ENVIRONMENT.get_template(template).render(**values)
