"""The results of checks in words: what must be true, how many rows break it, and the pages of Great Expectations.

Great Expectations escapes some values and writes others as they are: an unexpected value with markup becomes part of
the page. So values are escaped before it sees them, and each page says by a content security policy which scripts are
its own. A value that Great Expectations escapes, too, is shown with its escapes.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sluice.ledger.recorded_checks import ExpectationObservation, QualityObservation, QualityVerdict

SHOWN_SAMPLES = 3
"""How many values of rows a sentence quotes: enough to see what kind of mistake it is."""

SHOWN_SENTENCES = 5
"""How many broken expectations the sentence of a check names; the rest is counted."""

LONGEST_SAMPLE = 60

_COLUMN_ARGUMENTS = ("column", "column_A", "column_B", "column_list")

_RULES: Mapping[str, str] = {
    "expect_column_values_to_not_be_null": "{column} is not null",
    "expect_column_values_to_be_null": "{column} is null",
    "expect_column_values_to_be_unique": "{column} is unique",
    "expect_column_values_to_be_between": "{column} is {bounds}",
    "expect_column_values_to_be_in_set": "{column} is one of {value_set}",
    "expect_column_values_to_not_be_in_set": "{column} is none of {value_set}",
    "expect_column_values_to_match_regex": "{column} matches {regex}",
    "expect_column_values_to_not_match_regex": "{column} does not match {regex}",
    "expect_column_value_lengths_to_be_between": "the length of {column} is {bounds}",
    "expect_column_value_lengths_to_equal": "the length of {column} is {value}",
    "expect_column_min_to_be_between": "the smallest {column} is {bounds}",
    "expect_column_max_to_be_between": "the largest {column} is {bounds}",
    "expect_column_mean_to_be_between": "the mean of {column} is {bounds}",
    "expect_column_stdev_to_be_between": "the standard deviation of {column} is {bounds}",
    "expect_column_proportion_of_non_null_values_to_be_between": "the share of {column} that is not null is {bounds}",
    "expect_column_sum_to_be_between": "the sum of {column} is {bounds}",
    "expect_column_unique_value_count_to_be_between": "the number of values of {column} is {bounds}",
    "expect_column_to_exist": "the column {column} exists",
    "expect_column_pair_values_to_be_equal": "{column_A} equals {column_B}",
    "expect_column_pair_values_a_to_be_greater_than_b": "{column_A} is greater than {column_B}",
    "expect_compound_columns_to_be_unique": "{column_list} together are unique",
    "expect_table_row_count_to_be_between": "the number of rows is {bounds}",
    "expect_table_row_count_to_equal": "the number of rows is {value}",
    "column_values_to_be_unique_in_table": "{column} is unique in the table",
    "compound_columns_to_be_unique_in_table": "{column_list} together are unique in the table",
    "column_to_be_fresh": "the newest {column} is at most {within} old",
    "column_values_to_exist_in_table": "{column} is in {table}",
}
"""The rules that are used most; every other one is named with its arguments."""

_IN_WORDS = frozenset(
    {"min_value", "max_value", "strict_min", "strict_max", "mostly", "value_set", "regex", "value", "or_equal"}
    | {"within", "table"}
)

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


def rule_words(expectation: str, arguments: Mapping[str, Any]) -> str:
    """What must be true, with its columns and bounds: `strongest is between 0 and 5`."""
    given = {name: value for name, value in arguments.items() if value is not None}
    words = {name: _value_words(value) for name, value in given.items()} | {"bounds": _bounds(given)}
    pattern = _RULES.get(expectation, "")
    if given.get("or_equal") and "greater than" in pattern:
        pattern = pattern.replace("greater than", "at least")
    try:
        rule = pattern.format_map(words)
    except KeyError:
        rule = ""
    left = given if not rule else {k: v for k, v in given.items() if k not in (*_COLUMN_ARGUMENTS, *_IN_WORDS)}
    rule = rule or expectation.removeprefix("expect_").replace("_", " ")
    shown = ", ".join(f"{name} {_value_words(value)}" for name, value in left.items() if name != "mostly")
    mostly = given.get("mostly")
    most = f", in at least {100 * mostly:g} % of the rows" if isinstance(mostly, int | float) and mostly < 1 else ""
    return f"{rule}{f' ({shown})' if shown else ''}{most}"


def found_words(found: ExpectationObservation) -> str:
    """What was found: `3 of 318 rows are not, for example 5.3, 5.6, 6.1`."""
    if found.success is None:
        return f"could not be evaluated: {found.problem or 'it is unknown why'}"
    if found.unexpected_rows is None:
        value = found.observed.get("observed_value")
        return "holds" if found.success else f"found {_value_words(value)}" if value is not None else "does not hold"
    if not found.unexpected_rows:
        return "holds"
    elements = found.observed.get("element_count")
    of = f" of {elements:,}" if isinstance(elements, int) else ""
    samples = list(sample_words(found))
    examples = f", for example {', '.join(samples)}" if samples else ""
    return f"{found.unexpected_rows:,}{of} rows break it{examples}"


def expectation_sentence(found: ExpectationObservation) -> str:
    """An expectation with what was found."""
    return f"{rule_words(found.expectation, found.arguments)}: {found_words(found)}"


def without_masked_values(found: ExpectationObservation, masked: Collection[str]) -> ExpectationObservation:
    """The result without values of rows, when it is about a masked column; counts stay.

    Parameters
    ----------
    masked: the names of the columns, in lower case.
    """
    if not set(columns_of(found.arguments)) & set(masked):
        return found
    problem = "why is hidden, because it is about a masked column" if found.problem else ""
    kept = {name: value for name, value in found.observed.items() if name == "element_count"}
    return replace(found, observed=kept, problem=problem)


def columns_of(arguments: Mapping[str, Any]) -> Iterator[str]:
    """The columns that an expectation is about, in lower case."""
    for name in _COLUMN_ARGUMENTS:
        named = arguments.get(name)
        for column in named if isinstance(named, list | tuple) else [named]:
            if isinstance(column, str):
                yield column.partition(".")[0].lower()


def _bounds(given: Mapping[str, Any]) -> str:
    least, most = (_value_words(given[name]) if name in given else "" for name in ("min_value", "max_value"))
    if least and most and not given.get("strict_min") and not given.get("strict_max"):
        return f"between {least} and {most}"
    parts = []
    if least:
        parts.append(f"{'more than' if given.get('strict_min') else 'at least'} {least}")
    if most:
        parts.append(f"{'less than' if given.get('strict_max') else 'at most'} {most}")
    return " and ".join(parts) or "without bounds"


def sample_words(found: ExpectationObservation) -> Iterator[str]:
    """Some of the values that break an expectation, at most `SHOWN_SAMPLES` different ones."""
    seen = (_value_words(value) for value in found.observed.get("samples") or ())
    for number, words in enumerate(dict.fromkeys(seen)):
        if number == SHOWN_SAMPLES:
            return
        yield words


def _value_words(value: object) -> str:
    """A value on one line, cut to `LONGEST_SAMPLE` characters."""
    if isinstance(value, list | tuple):
        text = ", ".join(str(one) for one in value)
    elif isinstance(value, str):
        text = value or "''"
    else:
        text = json.dumps(value, default=str, ensure_ascii=False)
    text = " ".join(text.split()) or "' '"
    return text if len(text) <= LONGEST_SAMPLE else f"{text[: LONGEST_SAMPLE - 1]}…"


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
