"""Where the Data Docs of the checks are, the pages of Great Expectations; and the result of a check as a sentence."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from sluice.ledger.quality_checks import QualityObservation, QualityVerdict
from sluice.quality.expectation_sentences import SHOWN_SENTENCES, expectation_sentence

KEPT_CHECKS = 5
"""How many checks of a table keep their Data Docs, about 2 MB each. The ledger has all checks."""

_FOLDER_TIME = "%Y%m%dT%H%M%S.%fZ"


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
