"""What the README says is so: its length, its snippets, its commands, its folders and its links."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.fixtures.readme import PROJECT, named_blocks
from typer.core import TyperGroup
from typer.main import get_command

from sluice.cli.app import app
from sluice.declarations.load_declarations import load_declarations


def test_it_is_short(readme: str) -> None:
    assert len(readme.splitlines()) <= 200


def test_its_stream_is_valid_beside_the_demos(readme: str, pipelines_with_readme_stream: Path) -> None:
    assert [name for name, _ in named_blocks(readme)] == [
        "gold.long_delays.table.yaml",
        "gold_long_delays.stream.yaml",
        "gold_long_delays.sql",
    ]
    declarations = load_declarations(pipelines_with_readme_stream)
    assert declarations.problems == ()
    assert declarations.stream("gold_long_delays").declaration.tables_written == ("gold.long_delays",)


def test_its_make_targets_exist(readme: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):.*##", (PROJECT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"`make ([a-z-]+)`", readme)) | set(re.findall(r"^make ([a-z-]+)", readme, re.MULTILINE))
    named |= set(re.findall(r"`(test-[a-z-]+)`", readme))
    assert named
    assert named <= targets


def _commands(readme: str) -> list[tuple[str, ...]]:
    lines = re.findall(r"`sluice ([a-z][a-z -]*)", readme)
    return sorted({tuple(word for word in line.split() if re.fullmatch(r"[a-z][a-z-]*", word)) for line in lines})


@pytest.fixture(scope="module")
def root() -> TyperGroup:
    """The command, with all its families."""
    command = get_command(app)
    assert isinstance(command, TyperGroup)
    return command


@pytest.mark.parametrize("words", _commands((PROJECT / "README.md").read_text()), ids=" ".join)
def test_its_commands_exist(root: TyperGroup, words: tuple[str, ...]) -> None:
    family = root.commands[words[0]]
    assert len(words) == 1 or not isinstance(family, TyperGroup) or words[1] in family.commands


def test_its_folders_and_links_exist(readme: str) -> None:
    folders = re.findall(r"^\| `([a-z/]+/)` \|", readme, re.MULTILINE)
    links = re.findall(r"\]\(([^)#:]+)\)", readme)
    assert len(folders) >= 5
    assert [place for place in (*folders, *links) if not (PROJECT / place).exists()] == []
