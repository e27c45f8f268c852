"""Every page of `docs/decisions` has a number, a date, a status and the same sections, and the index lists it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.architecture.source_modules import ROOT

FOLDER = ROOT / "docs" / "decisions"

INDEX = FOLDER / "README.md"

PAGES = sorted(path for path in FOLDER.glob("*.md") if path != INDEX)

HEAD = re.compile(
    r"# (?P<number>\d{4}) (?P<title>[A-Z][^\n]*[^\n.])\n\n"
    r"- Date: (?P<date>\d{4}-\d{2}-\d{2})\n"
    r"- Status: (?P<status>accepted|superseded by (?P<successor>\d{4}))\n\n"
)

FIRST_SECTIONS = ["Context", "Decision"]

LAST_SECTIONS = ["Consequences", "A change violates this when"]


def head_of(page: Path) -> re.Match[str]:
    """Number, title, date and status of a page."""
    found = HEAD.match(page.read_text())
    assert found is not None, f"{page.name} does not begin with `# NNNN Title`, `- Date: …` and `- Status: …`"
    return found


def file_name_of(number: str, title: str) -> str:
    """The name of a page's file: its number and its title in lower case with hyphens."""
    words = re.sub(r"[^a-z0-9]+", "-", title.lower().replace("'", "")).strip("-")
    return f"{number}-{words}.md"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem[:4])
def test_page_is_named_by_its_number_and_title(page: Path) -> None:
    head = head_of(page)

    assert page.name == file_name_of(head["number"], head["title"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem[:4])
def test_page_has_the_sections_of_a_decision(page: Path) -> None:
    head_of(page)

    sections = re.findall(r"^## (.+)$", page.read_text(), re.MULTILINE)

    assert sections[:2] == FIRST_SECTIONS
    assert sections[-2:] == LAST_SECTIONS


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem[:4])
def test_page_lists_what_violates_it(page: Path) -> None:
    last_section = page.read_text().rpartition("\n## ")[2]

    assert re.findall(r"^- ", last_section, re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem[:4])
def test_successor_of_a_superseded_page_exists(page: Path) -> None:
    successor = head_of(page)["successor"]

    assert successor is None or list(FOLDER.glob(f"{successor}-*.md"))


def test_numbers_have_no_gaps_and_follow_the_dates() -> None:
    heads = [head_of(page) for page in PAGES]

    assert [head["number"] for head in heads] == [f"{number:04d}" for number in range(1, len(PAGES) + 1)]
    assert [head["date"] for head in heads] == sorted(head["date"] for head in heads)


def test_index_lists_every_page_as_it_is() -> None:
    rows = [line for line in INDEX.read_text().splitlines() if re.match(r"\| \[\d{4}\]", line)]

    expected = [
        f"| [{head['number']}]({page.name}) | {head['date']} | {head['status']} | {head['title']} |"
        for page in PAGES
        for head in [head_of(page)]
    ]

    assert rows == expected
