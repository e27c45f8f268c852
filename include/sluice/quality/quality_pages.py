"""Writes the quality pages: one for each table and one for all tables, from the checks in the ledger.

They are plain files that open from disk; every value from the data is escaped. The Data Docs of a table's newest checks
are in folders beside its page, one for each check.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from sluice.ledger.connection import Ledger
from sluice.ledger.quality_checks import QualityObservation, QualityVerdict, newest_checks, recent_quality
from sluice.quality.expectation_sentences import SHOWN_SENTENCES, expectation_sentence, rule_words

if TYPE_CHECKING:
    from jinja2 import Environment

KEPT_CHECKS = 5
"""How many checks of a table keep their Data Docs, about 2 MB each. The ledger has all checks."""

SHOWN_CHECKS = 20
"""How many checks the page of a table lists: almost a day of hourly ones."""

SHOWN_CHARACTERS = 200
"""How many characters of one value a page shows, so that a payload of a megabyte does not make it unreadable."""

_FOLDER_TIME = "%Y%m%dT%H%M%S.%fZ"


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityPages:
    """The paths of a deployment's pages. root: the folder of the settings' `reports`."""

    root: Path

    @property
    def index(self) -> Path:
        """The page of all tables."""
        return self.root / "index.html"

    def page(self, table: str) -> Path:
        """The page of a table."""
        return self.root / table / "index.html"

    def data_docs(self, table: str, checked_at: datetime) -> Path:
        """The folder for the Data Docs of one check."""
        return self.root / table / checked_at.astimezone(UTC).strftime(_FOLDER_TIME)

    def result_page(self, table: str, checked_at: datetime) -> str:
        """The page of Great Expectations about one check, below the folder of the table: that of the result itself, and
        not the list that leads to it, which a script would have to write. Empty where it is no longer kept."""
        below = sorted((self.data_docs(table, checked_at) / "validations").rglob("*.html"))
        return below[0].relative_to(self.root / table).as_posix() if below else ""

    def write(self, checks: Sequence[QualityObservation], newest: Sequence[QualityObservation]) -> None:
        """Write the page of a table and the page of all tables, and delete the oldest Data Docs of the table.

        Parameters
        ----------
        checks: the newest checks of one table, newest first, at least one.
        newest: the newest check of every table.
        """
        table = checks[0].table
        self._drop_old(table)
        templates = _templates()
        links = {check.checked_at: self.result_page(table, check.checked_at) for check in checks}
        page = templates.get_template("quality_table.html.j2").render(
            newest=checks[0], checks=checks, pages=links, sentence=quality_sentence(checks[0])
        )
        _replace(self.page(table), page)
        ordered = sorted(newest, key=lambda check: check.table)
        _replace(self.index, templates.get_template("quality_index.html.j2").render(checks=ordered))

    def _drop_old(self, table: str) -> None:
        """Delete all but the newest Data Docs."""
        below = (self.root / table).iterdir() if (self.root / table).is_dir() else ()
        folders = {at: folder for folder in below if folder.is_dir() and (at := _time_of(folder.name)) is not None}
        for checked_at in sorted(folders, reverse=True)[KEPT_CHECKS:]:
            shutil.rmtree(folders[checked_at])


def write_pages(ledger: Ledger, pages: QualityPages, table: str) -> None:
    """Write the pages of a table from the ledger, after a check has been recorded there."""
    pages.write(recent_quality(ledger, table, limit=SHOWN_CHECKS), newest_checks(ledger))


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


def _templates() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    templates = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"), autoescape=True, undefined=StrictUndefined
    )
    templates.filters["moment"] = lambda moment: f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    templates.filters["words"] = lambda name: name.removeprefix("expect_").replace("_", " ")
    templates.filters["rule"] = lambda found: rule_words(found.expectation, found.arguments)
    templates.filters["shown"] = _shown
    return templates


def _shown(value: object) -> str:
    """A value as JSON, cut to `SHOWN_CHARACTERS`; text as it is."""
    text = value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"


def _replace(page: Path, text: str) -> None:
    """Replace a page atomically: it may be read meanwhile, and two jobs may write the index at the same time."""
    page.parent.mkdir(parents=True, exist_ok=True)
    written = page.with_name(f".{page.name}.{os.getpid()}.tmp")
    written.write_text(text, encoding="utf-8")
    written.replace(page)
