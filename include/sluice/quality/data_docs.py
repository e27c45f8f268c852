"""Makes the Data Docs of a check safe to open: what comes from rows is escaped, and nothing else runs as a script.

Great Expectations escapes some values and writes others as they are: an unexpected value with markup becomes part of
the page. So values are escaped before it sees them, and each page says by a content security policy which scripts are
its own. A value that Great Expectations escapes, too, is shown with its escapes.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

_SCRIPT = re.compile(r"<script(?P<attributes>[^>]*)>(?P<text>.*?)</script>", re.DOTALL | re.IGNORECASE)
_SOURCE = re.compile(r"""src=["'](?P<source>https://[^"']+)["']""", re.IGNORECASE)
_HANDLER = re.compile(r'\sonclick="(?P<text>[^"]*)"')
_OWN_HANDLER = re.compile(r"(?:clearTableFilters|showAllValidations|hideSucceededValidations)\((?:'[\w-]{0,200}')?\)")
"""What the buttons of Great Expectations' pages call."""

_HEAD = re.compile(r"<head[^>]*>", re.IGNORECASE)


def escaped(value: Any) -> Any:
    """The value with every text in it escaped for HTML, keys of mappings included; other values as they are."""
    if isinstance(value, str):
        return html.escape(value)
    if isinstance(value, Mapping):
        return {escaped(key): escaped(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [escaped(inner) for inner in value]
    return value


def protect_pages(folder: Path, *, templates: Path) -> None:
    """Add a content security policy to every page below a folder.

    Parameters
    ----------
    folder: of one check's Data Docs. Its `index.html` lists checks and has no value of a row.
    templates: the folder of the templates that the pages were made from; a script that stands in one of them is known.
    """
    known = "\n".join(file.read_text(encoding="utf-8") for file in sorted(templates.glob("*.j2")))
    for page in sorted(folder.rglob("*.html")):
        text = page.read_text(encoding="utf-8")
        trusted = None if page == folder / "index.html" else known
        page.write_text(protected(text, known_scripts=trusted), encoding="utf-8")


def protected(page: str, *, known_scripts: str | None) -> str:
    """A page with a content security policy: its own scripts run, no other one does, and no form sends anything.

    Parameters
    ----------
    known_scripts: the text in which every script of the page stands; None when all scripts of the page are trusted.
    """
    scripts = list(_SCRIPT.finditer(page))
    inline = (found["text"] for found in scripts if not _SOURCE.search(found["attributes"]))
    allowed = [text for text in inline if known_scripts is None or text.strip() in known_scripts]
    handlers = [html.unescape(found["text"]) for found in _HANDLER.finditer(page)]
    allowed += [text for text in handlers if _OWN_HANDLER.fullmatch(text)]
    sources = [source["source"] for found in scripts if (source := _SOURCE.search(found["attributes"]))]
    policy = _policy(scripts=allowed, sources=sources if known_scripts is None else _listed(sources, known_scripts))
    meta = f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    return _HEAD.sub(lambda head: f"{head[0]}\n{meta}", page, count=1)


def _listed(sources: Iterable[str], known: str) -> list[str]:
    return [source for source in sources if source in known]


def _policy(*, scripts: Sequence[str], sources: Sequence[str]) -> str:
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts]
    allowed = [*dict.fromkeys(sources), *dict.fromkeys(f"'sha256-{digest}'" for digest in digests)]
    return "; ".join(
        (
            "default-src 'none'",
            " ".join(("script-src 'unsafe-hashes'", *allowed)),
            "style-src 'unsafe-inline' https:",
            "font-src https:",
            "img-src data: https:",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
