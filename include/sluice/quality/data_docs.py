"""Where the Data Docs of the checks are, the pages of Great Expectations; and the result of a check as a sentence.

Great Expectations escapes some values and writes others as they are: an unexpected value with markup becomes part of
the page. So values are escaped before it sees them, and each page says by a content security policy which scripts are
its own. A value that Great Expectations escapes, too, is shown with its escapes.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sluice.ledger.quality_checks import QualityObservation, QualityVerdict
from sluice.quality.expectation_sentences import SHOWN_SENTENCES, expectation_sentence

KEPT_CHECKS = 5
"""How many checks of a table keep their Data Docs, about 2 MB each. The ledger has all checks."""

_FOLDER_TIME = "%Y%m%dT%H%M%S.%fZ"

_SCRIPT = re.compile(r"<script(?P<attributes>[^>]*)>(?P<text>.*?)</script>", re.DOTALL | re.IGNORECASE)
_SOURCE = re.compile(r"""src=["'](?P<source>https://[^"']+)["']""", re.IGNORECASE)
_HANDLER = re.compile(r'\sonclick="(?P<text>[^"]*)"')
_OWN_HANDLER = re.compile(r"(?:clearTableFilters|showAllValidations|hideSucceededValidations)\((?:'[\w-]{0,200}')?\)")
"""What the buttons of Great Expectations' pages call."""

_HEAD = re.compile(r"<head[^>]*>", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityPages:
    """The Data Docs of a deployment's checks. root: the folder of the settings' `reports`."""

    root: Path

    def data_docs(self, table: str, checked_at: datetime) -> Path:
        """The folder for the Data Docs of one check."""
        return self.root / table / checked_at.astimezone(UTC).strftime(_FOLDER_TIME)

    def result_page(self, table: str, checked_at: datetime) -> str:
        """The page of Great Expectations about one check, below the folder of the table: that of the result itself, and
        not the list that leads to it, which a script would have to write. Empty where it is no longer kept."""
        below = sorted((self.data_docs(table, checked_at) / "validations").rglob("*.html"))
        return below[0].relative_to(self.root / table).as_posix() if below else ""

    def drop_old(self, table: str) -> None:
        """Delete all Data Docs of a table but those of its newest checks."""
        below = (self.root / table).iterdir() if (self.root / table).is_dir() else ()
        folders = {at: folder for folder in below if folder.is_dir() and (at := _time_of(folder.name)) is not None}
        for checked_at in sorted(folders, reverse=True)[KEPT_CHECKS:]:
            shutil.rmtree(folders[checked_at])


def quality_sentence(check: QualityObservation) -> str:
    """The result of a check in one sentence."""
    failed = len(check.failed_expectations)
    if check.verdict is QualityVerdict.NOTHING_TO_CHECK:
        return f"{check.table} has no snapshot yet, so there was nothing to check."
    where = f"on {check.rows:,} rows of snapshot {check.snapshot_id}"
    if check.verdict is QualityVerdict.PASSED and check.rows == 0:
        return f"All {check.expectations} expectations hold, but {where}: an empty table says little."
    if check.verdict is QualityVerdict.PASSED:
        return f"All {check.expectations} expectations hold {where}."
    said = "could not be evaluated" if check.verdict is QualityVerdict.UNDECIDED else "do not hold"
    return f"{failed} of {check.expectations} expectations {said} {where}: {_failures(check)}."


def _failures(check: QualityObservation) -> str:
    """What is broken, each with its column, bounds and some values."""
    sentences = [expectation_sentence(found) for found in check.details if not found.success]
    if not sentences:  # a check of a program that recorded no details
        return ", ".join(dict.fromkeys(check.failed_expectations))
    more = len(sentences) - SHOWN_SENTENCES
    shown = "; ".join(sentences[:SHOWN_SENTENCES])
    return shown if more <= 0 else f"{shown}; and {more} more"


def _time_of(name: str) -> datetime | None:
    try:
        return datetime.strptime(name, _FOLDER_TIME).replace(tzinfo=UTC)
    except ValueError:  # not a folder of Data Docs: it is not deleted
        return None


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
