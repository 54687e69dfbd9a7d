"""A report as one HTML page that needs nothing else: no script, no font, no request.

A Content-Security-Policy in the page forbids everything but its own style sheet, by its hash: even if a name from a
file slipped through escaping, a browser would run nothing.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib import resources

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape

from kbench.core import shown

from .block import Section
from .chart import NARROW, WIDE, Fields
from .drawing import plain
from .palette import chart_css, page_properties
from .provenance import host_name
from .section import sections

# Characters of a rule file that are shown; those of the largest models have a twentieth.
_MAX_CODE = 1_000_000


def html_page(fields: Fields) -> str:
    """The page for the checked fields of a tune's result (``read_tune_result``)."""
    model = fields["model"]
    footer = f"Made by kbench {fields.get('kbench_version', '')} from one result of kbench tune."
    return render_page(model["name"], model["quant"], "report", _subtitle(fields), sections(fields), footer)


def render_page(title: str, title_more: str, kind: str, subtitle: str, found: Sequence[Section], footer: str) -> str:
    """A page of sections. ``kind`` says in the window's title what it is: report, history, comparison."""
    # In a page, too, a name must not reverse the direction of the text around it.
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=_finalize
    )
    template = environment.from_string(_resource("page.html.j2"))
    style = _style()
    return template.render(
        title=title,
        title_more=title_more,
        kind=kind,
        code=_code,
        subtitle=subtitle,
        sections=found,
        style=style,
        style_hash=base64.b64encode(hashlib.sha256(style.encode()).digest()).decode(),
        wide=WIDE,
        narrow=NARROW,
        footer=f"{footer} Nothing on this page was loaded from elsewhere.",
    )


def _finalize(value: object) -> object:
    """Text on one line, cut, without what a screen would obey; what is markup already stays."""
    return plain(value, 4000) if isinstance(value, str) and not hasattr(value, "__html__") else value


def _code(text: str) -> Markup:
    """A block of code, which keeps its lines, without what a screen would obey."""
    return escape(shown(text if len(text) <= _MAX_CODE else f"{text[:_MAX_CODE]}…"))


def _style() -> str:
    scheme = (
        f":root{{color-scheme:light dark;{page_properties()}}}\n"
        ":root:has(#scheme-light:checked){color-scheme:light}\n"
        ":root:has(#scheme-dark:checked){color-scheme:dark}\n"
    )
    return f"{scheme}{_resource('page.css')}{chart_css()}\n"


def _resource(name: str) -> str:
    return (resources.files(__package__) / name).read_text(encoding="utf-8")


def _subtitle(fields: Fields) -> str:
    parts = [
        host_name(fields),
        f"{fields['gpu']['label']} (modelled)" if fields["gpu"] else "",
        f"context {fields['workload']['context']:g} tokens",
        fields.get("created", "")[:10],
    ]
    return " · ".join(part for part in parts if part)
