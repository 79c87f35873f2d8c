"""The matrix as one self-contained HTML page."""

from __future__ import annotations

import re
from pathlib import Path

import jinja2

from . import tables
from .changes import SECTIONS
from .model import TIERS, TITLES, Matrix

TEMPLATE = Path(__file__).with_name("page.html.j2")


def render(matrix: Matrix) -> str:
    """The page's text. Everything in it is escaped; it loads nothing from anywhere."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(
        css=lambda state: tables.LOOKS[state][0],
        sign=lambda state: tables.LOOKS[state][1],
        word=lambda state: tables.LOOKS[state][2],
        ident=lambda name: re.sub(r"\W", "-", name),
        brief=lambda text: text.partition("\n")[0].partition(":")[0][:24],
    )
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    return template.render(
        matrix=matrix,
        span=tables.span(matrix),
        headline=tables.headline(matrix),
        kept=sum(subject.cached for subject in matrix.subjects),
        titles=TIERS,
        long_titles=TITLES,
        sections=SECTIONS,
        patches=tables.patches(matrix),
        operators=tables.operators(matrix),
    )
