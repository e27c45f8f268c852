"""Loading a folder: what is found, and what a broken file does to the others."""

from __future__ import annotations

import hashlib
from dataclasses import FrozenInstanceError
from typing import TYPE_CHECKING

import pytest

from sluice.declarations.load_declarations import declared_name, load_declarations
from sluice.errors import DeclarationError, UsageError

if TYPE_CHECKING:
    from tests.unit.declarations.conftest import Folder


def test_a_sound_folder_loads_whole(sound: Folder) -> None:
    declarations = sound.load()
    assert declarations.problems == ()
    assert set(declarations.streams) == {"silver_flights"}
    assert set(declarations.tables) == {"bronze.flights", "reference.airlines", "silver.flights"}
    stream = declarations.stream("silver_flights")
    assert stream.file == sound.path / "silver_flights.stream.yaml"
    assert stream.folder == sound.path
    assert stream.transformation_file == sound.path / "transformations.py"
    assert stream.declaration.tables_read == ("bronze.flights", "reference.airlines")
    assert stream.declaration.tables_written == ("silver.flights",)
    declarations.require_valid()


def test_the_digest_covers_the_functions_of_outputs(folder: Folder) -> None:
    folder.write("transformations.py", "def one(records): ...\n")
    folder.write("telling.py", "def tell(rows, batch): ...\n")
    folder.write(
        "s.stream.yaml",
        "stream: s\ndescription: x\nowner: me\nmode: continuous\ntrigger: {processing_time: 1 second}\n"
        "inputs: {records: {stream: {rate: {}}}}\ntransformation: {python: transformations.py:one}\n"
        "outputs: {told: {python: {function: telling.py:tell}}}\n",
    )
    before = folder.load().stream("s").digest
    folder.write("telling.py", "def tell(rows, batch): print(rows)\n")
    assert folder.load().stream("s").digest != before


def test_the_digest_covers_the_declaration_and_its_transformation(sound: Folder) -> None:
    stream = sound.load().stream("silver_flights")
    parts = (stream.file.read_bytes(), stream.transformation_file.read_bytes())
    assert stream.digest == hashlib.sha256(b"".join(parts)).hexdigest()
    sound.write("transformations.py", stream.transformation_file.read_text() + "# changed\n")
    assert sound.load().stream("silver_flights").digest != stream.digest


@pytest.mark.parametrize("text", [b"", b"stream: [", b"\xff\xfe", b"stream: x", b"a" * (1024**2 + 1)])
def test_a_broken_file_hides_no_other(sound: Folder, text: bytes) -> None:
    broken = sound.write("deep/down/broken.stream.yaml", text)
    declarations = sound.load()
    assert set(declarations.streams) == {"silver_flights"}
    assert set(declarations.broken) == {broken}
    assert declared_name(broken) == "broken"
    assert {problem.location.file for problem in declarations.broken[broken]} == {broken}
    with pytest.raises(DeclarationError) as refusal:
        declarations.require_valid()
    assert refusal.value is declarations.problems[0]


def test_a_file_that_cannot_be_read_is_a_problem(sound: Folder) -> None:
    (sound.path / "gone.table.yaml").symlink_to(sound.path / "nowhere")
    assert sound.problems() == ["gone.table.yaml:1: the file cannot be read: No such file or directory."]


def test_a_folder_that_cannot_be_read_is_a_problem(folder: Folder) -> None:
    (problem,) = load_declarations(folder.path / "none").problems
    assert str(problem) == (
        f"{folder.path / 'none'}:1: the folder cannot be read: No such file or directory. "
        "Set SLUICE_PIPELINES to the folder of the declarations, or create it."
    )


@pytest.mark.parametrize("name", ["a.stream.yml", "a.table.yml", "a.streams.yaml", "a.tables.yaml"])
def test_a_file_that_would_be_overlooked_is_a_problem(sound: Folder, name: str) -> None:
    sound.write(name, "")
    assert sound.problems() == [
        f"{name}:1: a declaration's file ends in .stream.yaml or .table.yaml; under this name it would be overlooked. "
        "Rename the file."
    ]


@pytest.mark.parametrize("name", [".hidden/a.stream.yaml", "__pycache__/a.stream.yaml", ".a.stream.yaml", "notes.yaml"])
def test_hidden_and_foreign_files_are_left_out(sound: Folder, name: str) -> None:
    sound.write(name, "- not a declaration")
    assert sound.load().problems == ()


def test_only_reads_one_stream_and_the_tables_it_names(sound: Folder) -> None:
    sound.write("other.stream.yaml", "broken: [")
    sound.write("bronze.other.table.yaml", "broken: [")
    declarations = sound.load(only="silver_flights")
    assert declarations.problems == ()
    assert set(declarations.streams) == {"silver_flights"}
    assert set(declarations.tables) == {"bronze.flights", "reference.airlines", "silver.flights"}


def test_only_reads_one_table(sound: Folder) -> None:
    declarations = sound.load(only="bronze.flights")
    assert set(declarations.streams) == set()
    assert set(declarations.tables) == {"bronze.flights"}


def test_asking_for_what_is_not_declared_names_what_is(sound: Folder) -> None:
    for declarations in (sound.load(), sound.load(only="silver_flight")):
        with pytest.raises(UsageError) as refusal:
            declarations.stream("silver_flight")
        assert str(refusal.value) == (
            f"No stream is called 'silver_flight' in {sound.path}; declared are: silver_flights. "
            "Did you mean `silver_flights`?"
        )
    with pytest.raises(UsageError, match=r"No table is called 'gold\.x' .* bronze\.flights, reference\.airlines"):
        sound.load().table("gold.x")


def test_asking_for_a_broken_one_raises_its_problem(sound: Folder) -> None:
    sound.write("broken.stream.yaml", "stream: broken\nstream: broken\n")
    with pytest.raises(DeclarationError, match="written twice"):
        sound.load().stream("broken")


def test_what_was_loaded_is_frozen(sound: Folder) -> None:
    declarations = sound.load()
    with pytest.raises(FrozenInstanceError):
        declarations.problems = ()  # type: ignore[misc]  # the refusal is the point
    with pytest.raises(TypeError):
        declarations.streams["x"] = declarations.stream("silver_flights")  # type: ignore[index]  # as above
