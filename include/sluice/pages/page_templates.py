"""The templates of the pages: HTML in which everything is escaped that is not itself a template."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from sluice.pages.page_figures import (
    NOTHING,
    ShownTone,
    age_words,
    bars_of,
    bars_path,
    count_text,
    duration_text,
    line_path,
    moment_text,
    rate_text,
    short_name,
    size_text,
    top_of,
    without_long_ids,
)
from sluice.pages.quality_report import history_tones, tone_of

STATIC = Path(__file__).parent / "static"
"""The style sheet and the scripts of the pages: three files, served as they are."""

_SYMBOLS = {ShownTone.BAD: "●", ShownTone.ODD: "▲", ShownTone.CALM: "○", ShownTone.GOOD: "✓"}
_BACKTICKS = re.compile(r"`([^`]*)`")
_SPARK_WIDTH, _SPARK_HEIGHT = 96.0, 22.0


def render(name: str, values: Mapping[str, Any]) -> str:
    """Fill a template.

    Parameters
    ----------
    name: of the template, without its endings.
    """
    return _environment().get_template(f"{name}.html.j2").render(values)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        auto_reload=False,  # a server shows the templates that it was started with, also while an upgrade copies files
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "age": age_words,
        "bars": bars_of,
        "coded": _coded,
        "count": count_text,
        "due": _due,
        "duration": duration_text,
        "milliseconds": lambda value: duration_text(timedelta(milliseconds=value)),
        "moment": moment_text,
        "offsets": lambda value: json.dumps(value, sort_keys=True, default=str),
        "rate": rate_text,
        "tone": tone_of,
        "tones": history_tones,
        "symbol": lambda tone: _SYMBOLS[tone],
        "short": short_name,
        "short_ids": without_long_ids,
        "size": size_text,
        "small_bars": bars_path,
        "spark": _spark,
        "when": _when,
    }
    environment.globals["NOTHING"] = NOTHING
    return environment


def _spark(values: tuple[int | None, ...]) -> Markup:
    """A small chart of a lag; its figures are numbers, so nothing in it needs to be escaped."""
    stroke, area = line_path(values, width=_SPARK_WIDTH, height=_SPARK_HEIGHT, top=top_of(values))
    if not stroke:
        return Markup("")
    return Markup(
        '<svg class="spark" viewBox="0 0 96 22" aria-hidden="true"><path d="{}"/><path d="{}"/></svg>'
    ).format(area, stroke)


def _coded(text: str) -> Markup:
    """A sentence with what stands between backticks as code."""
    return Markup(_BACKTICKS.sub(r"<code>\1</code>", str(escape(text))))  # noqa: S704  # it is escaped


def _due(moment: datetime, now: datetime) -> Markup:
    """A time to come as a duration, with the exact time for the pointer and for programs."""
    words = f"in {duration_text(moment - now)}" if moment > now else "now"
    return Markup('<time datetime="{}" title="{}">{}</time>').format(moment.isoformat(), moment_text(moment), words)


def _when(moment: datetime | None, now: datetime) -> Markup:
    """A time as an age, with the exact time for the pointer and for programs."""
    if moment is None:
        return Markup('<span class="dim">{}</span>').format(NOTHING)
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        moment.isoformat(), moment_text(moment), age_words(now - moment)
    )
