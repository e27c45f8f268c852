"""Loading a folder: what is found, and what a broken file does to the others."""

from __future__ import annotations

import hashlib
from dataclasses import FrozenInstanceError
from typing import TYPE_CHECKING

import pytest

from sluice.declarations.load_declarations import load_declarations
from sluice.declarations.loaded_declarations import declared_name
from sluice.errors import DeclarationError, UsageError

if TYPE_CHECKING:
    from tests.unit.declarations.conftest import Folder


def test_a_valid_folder_loads_whole(valid: Folder) -> None:
    declarations = valid.load()
    assert declarations.problems == ()
    assert set(declarations.streams) == {"silver_flights"}
    assert set(declarations.tables) == {"bronze.flights", "reference.airlines", "silver.flights"}
    stream = declarations.stream("silver_flights")
    assert stream.file == valid.path / "silver_flights.stream.yaml"
    assert stream.folder == valid.path
    assert stream.transformation_file == valid.path / "transformations.py"
    assert stream.declaration.tables_read == ("bronze.flights", "reference.airlines")
    assert stream.declaration.tables_written == ("silver.flights",)
    declarations.require_valid()


def test_the_digest_covers_the_functions_of_outputs(folder: Folder) -> None:
    folder.write("transformations.py", "def one(records): ...\n")
    folder.write("notifications.py", "def notify(rows, batch): ...\n")
    folder.write(
        "s.stream.yaml",
        "stream: s\ndescription: x\nowner: me\nmode: continuous\ntrigger: {processing_time: 1 second}\n"
        "inputs: {records: {stream: {rate: {}}}}\ntransformation: {python: transformations.py:one}\n"
        "outputs: {notified: {python: {function: notifications.py:notify}}}\n",
    )
    before = folder.load().stream("s").digest
    folder.write("notifications.py", "def notify(rows, batch): print(rows)\n")
    assert folder.load().stream("s").digest != before


def test_the_digest_covers_the_declaration_and_its_transformation(valid: Folder) -> None:
    stream = valid.load().stream("silver_flights")
    parts = (stream.file.read_bytes(), stream.transformation_file.read_bytes())
    assert stream.digest == hashlib.sha256(b"".join(parts)).hexdigest()
    valid.write("transformations.py", stream.transformation_file.read_text() + "# changed\n")
    assert valid.load().stream("silver_flights").digest != stream.digest


@pytest.mark.parametrize("text", [b"", b"stream: [", b"\xff\xfe", b"stream: x", b"a" * (1024**2 + 1)])
def test_a_broken_file_hides_no_other(valid: Folder, text: bytes) -> None:
    broken = valid.write("deep/down/broken.stream.yaml", text)
    declarations = valid.load()
    assert set(declarations.streams) == {"silver_flights"}
    assert set(declarations.broken) == {broken}
    assert declared_name(broken) == "broken"
    assert {problem.location.file for problem in declarations.broken[broken]} == {broken}
    with pytest.raises(DeclarationError) as refusal:
        declarations.require_valid()
    assert refusal.value is declarations.problems[0]


def test_a_file_that_cannot_be_read_is_a_problem(valid: Folder) -> None:
    (valid.path / "gone.table.yaml").symlink_to(valid.path / "nowhere")
    assert valid.problems() == ["gone.table.yaml:1: the file cannot be read: No such file or directory."]


def test_a_folder_that_cannot_be_read_is_a_problem(folder: Folder) -> None:
    (problem,) = load_declarations(folder.path / "none").problems
    assert str(problem) == (
        f"{folder.path / 'none'}:1: the folder cannot be read: No such file or directory. "
        "Set SLUICE_PIPELINES to the folder of the declarations, or create it."
    )


@pytest.mark.parametrize("name", ["a.stream.yml", "a.table.yml", "a.streams.yaml", "a.tables.yaml"])
def test_a_file_that_would_be_overlooked_is_a_problem(valid: Folder, name: str) -> None:
    valid.write(name, "")
    assert valid.problems() == [
        f"{name}:1: a declaration's file ends in .stream.yaml or .table.yaml; under this name it would be overlooked. "
        "Rename the file."
    ]


@pytest.mark.parametrize("name", [".hidden/a.stream.yaml", "__pycache__/a.stream.yaml", ".a.stream.yaml", "notes.yaml"])
def test_hidden_and_foreign_files_are_left_out(valid: Folder, name: str) -> None:
    valid.write(name, "- not a declaration")
    assert valid.load().problems == ()


def test_only_reads_one_stream_and_the_tables_it_names(valid: Folder) -> None:
    valid.write("other.stream.yaml", "broken: [")
    valid.write("bronze.other.table.yaml", "broken: [")
    declarations = valid.load(only="silver_flights")
    assert declarations.problems == ()
    assert set(declarations.streams) == {"silver_flights"}
    assert set(declarations.tables) == {"bronze.flights", "reference.airlines", "silver.flights"}


def test_only_reads_one_table(valid: Folder) -> None:
    declarations = valid.load(only="bronze.flights")
    assert set(declarations.streams) == set()
    assert set(declarations.tables) == {"bronze.flights"}


def test_asking_for_what_is_not_declared_names_what_is(valid: Folder) -> None:
    for declarations in (valid.load(), valid.load(only="silver_flight")):
        with pytest.raises(UsageError) as refusal:
            declarations.stream("silver_flight")
        assert str(refusal.value) == (
            f"No stream is called 'silver_flight' in {valid.path}; declared are: silver_flights. "
            "Did you mean `silver_flights`?"
        )
    with pytest.raises(UsageError, match=r"No table is called 'gold\.x' .* bronze\.flights, reference\.airlines"):
        valid.load().table("gold.x")


def test_asking_for_a_broken_one_raises_its_problem(valid: Folder) -> None:
    valid.write("broken.stream.yaml", "stream: broken\nstream: broken\n")
    with pytest.raises(DeclarationError, match="written twice"):
        valid.load().stream("broken")


def test_what_was_loaded_is_frozen(valid: Folder) -> None:
    declarations = valid.load()
    with pytest.raises(FrozenInstanceError):
        declarations.problems = ()  # type: ignore[misc]  # the refusal is the point
    with pytest.raises(TypeError):
        declarations.streams["x"] = declarations.stream("silver_flights")  # type: ignore[index]  # as above
