"""`docs/architecture.md` and the table of rooms in README name every room once, and nothing that does not exist."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from tests.architecture.source_modules import ROOT
from tests.architecture.test_import_directions import MAY_IMPORT

MAP = (ROOT / "docs" / "architecture.md").read_text()

README = (ROOT / "README.md").read_text()

FOLDERS_WITHOUT_RULES = ("dags", "jobs", "include/pipelines", "benchmarks")
"""Rooms that the rules of imports know by another name, or not at all."""

LONGEST_CORE_FLOW_LINES = 8

MOST_FILES_TO_OPEN = 2

EVERYDAY_QUESTIONS = (
    "How long until a dead driver is restarted?",
    "Which S3 settings does Spark get?",
    "How is a late row counted?",
    "What does snapshot expiry keep?",
    "Where are Kafka options built?",
    "How is a MERGE written?",
    "Where is the compatibility rule of checkpoints?",
    "How is a paused DAG noticed?",
    "Where are the classes of failures defined?",
    "Where are the demo's expectations?",
)


def section_of(document: str, title: str) -> str:
    """The text of a section, up to the next one of its level."""
    return document.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def first_cells(section: str) -> list[str]:
    """What stands between backticks in the first column of a section's tables."""
    return re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)


def names_in_row(section: str, folder: str) -> list[str]:
    """What stands between backticks in the second column of a folder's row."""
    (row,) = (line for line in section.splitlines() if line.startswith(f"| `{folder}` |"))
    return re.findall(r"`(\w+)`", row)


def folders_of_tests() -> set[str]:
    """Every folder directly below `tests`."""
    return {f"tests/{path.name}" for path in (ROOT / "tests").iterdir() if path.is_dir() and path.name[0] not in "_."}


def answers() -> list[tuple[str, list[str]]]:
    """Every question of the map, with the files that answer it."""
    rows = re.findall(r"^\| ([^|]+) \| (`[^|]+) \|$", section_of(MAP, "Where do I find …?"), re.MULTILINE)
    return [(question, re.findall(r"`([^`]+)`", files)) for question, files in rows]


def test_every_room_is_named_once_and_exists() -> None:
    named = Counter(first_cells(section_of(MAP, "The rooms")))

    assert named == Counter({*MAY_IMPORT, *FOLDERS_WITHOUT_RULES, *folders_of_tests()})


def test_core_flow_is_short() -> None:
    steps = [line for line in section_of(MAP, "The core flow").splitlines() if re.match(r"\d+\. ", line)]

    assert 1 < len(steps) <= LONGEST_CORE_FLOW_LINES


@pytest.mark.parametrize(("question", "files"), answers(), ids=[question for question, _ in answers()])
def test_answer_is_in_few_files_that_exist(question: str, files: list[str]) -> None:
    assert 1 <= len(files) <= MOST_FILES_TO_OPEN
    assert [file for file in files if not Path(ROOT / file).is_file()] == []


def test_everyday_questions_have_an_answer() -> None:
    asked = {question for question, _ in answers()}

    assert set(EVERYDAY_QUESTIONS) - asked == set()


def test_rooms_of_readme_exist() -> None:
    section = section_of(README, "The rooms")
    folders = first_cells(section)
    rooms = re.findall(
        r"`(\w+)`", next(line for line in section.splitlines() if line.startswith("| `include/sluice/`"))
    )
    rings = re.findall(r"`(\w+)`", next(line for line in section.splitlines() if line.startswith("| `tests/`")))

    assert [folder for folder in folders if not (ROOT / folder).is_dir()] == []
    assert {f"sluice.{room}" for room in rooms} - set(MAY_IMPORT) == set()
    assert {f"tests/{ring}" for ring in rings} - folders_of_tests() == set()
