"""Every mistake is answered with its sentence, and what is only odd is accepted: tables in `refused/` and `accepted/`.

Each file there is a group. An entry names a base (`in`), what is written (`write`) in place of what (`instead of`), and
the sentences (`says`); or a query (`sql`). `{x*300}` stands for 300 of a character.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.fixtures.base_declarations import BASES, write_bases

from sluice.declarations.load_declarations import load_declarations

HERE = Path(__file__).parent
REFUSED = {file.stem: yaml.safe_load(file.read_text()) for file in sorted((HERE / "refused").glob("*.yaml"))}
ACCEPTED = {file.stem: yaml.safe_load(file.read_text()) for file in sorted((HERE / "accepted").glob("*.yaml"))}
LONGEST_SECONDS = 10.0
"""Of one folder with one mistake: it takes hundredths of a second, and a hang takes for ever."""

_RUN = re.compile(r"\{(.)\*(\d+)\}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bases, all valid."""
    folder = tmp_path_factory.mktemp("bases")
    write_bases(folder)
    assert load_declarations(folder).problems == ()
    return folder


def test_there_are_as_many_as_promised() -> None:
    assert sum(map(len, REFUSED.values())) >= 300
    assert sum(map(len, ACCEPTED.values())) >= 100


@pytest.mark.parametrize("group", REFUSED)
def test_each_mistake_is_answered_with_its_sentence(folder: Path, group: str) -> None:
    wrong = {}
    for entry in REFUSED[group]:
        said = _said(folder, entry)
        if said != entry["says"] or not said:
            wrong[_name(entry)] = said
    assert wrong == {}


@pytest.mark.parametrize("group", ACCEPTED)
def test_what_is_only_odd_is_accepted(folder: Path, group: str) -> None:
    assert {_name(entry): said for entry in ACCEPTED[group] if (said := _said(folder, entry))} == {}


def test_no_answer_repeats_what_may_be_secret() -> None:
    sentences = [sentence for entries in REFUSED.values() for entry in entries for sentence in entry["says"]]
    assert [sentence for sentence in sentences if re.search("hunter2|tiger", sentence)] == []


def _said(folder: Path, entry: dict[str, Any]) -> list[str]:
    file = folder / (BASES[entry["in"]].name if "in" in entry else "orders.sql")
    valid = file.read_bytes()
    if "in" in entry:
        text = valid.decode()
        assert entry["instead of"] in text
        file.write_text(text.replace(entry["instead of"], _long(entry["write"]), 1))
    else:
        file.write_text(entry["sql"])
    began = time.monotonic()
    problems = load_declarations(folder).problems
    assert time.monotonic() - began < LONGEST_SECONDS, _name(entry)
    file.write_bytes(valid)
    said = [str(problem).replace(f"{folder}/", "") for problem in problems]
    return said if "in" in entry else [sentence for sentence in said if sentence.startswith("bronze_orders")]


def _name(entry: dict[str, Any]) -> str:
    return str(entry.get("write", entry.get("sql")))[:80]


def _long(text: str) -> str:
    return _RUN.sub(lambda run: run[1] * int(run[2]), text)
