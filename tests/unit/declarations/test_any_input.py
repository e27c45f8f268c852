"""Whatever a file holds, it is loaded or refused with file and line: nothing is raised, and no other file suffers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.declarations.conftest import STREAM, TABLE, Folder

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(alphabet=st.characters(codec="utf-8", categories=("L", "N", "P", "S", "Zs")), max_size=20),
    st.sampled_from(["merge", "kafka", "1 day", "512 MiB", "list<int>", "a.b", "@daily", "{braces}", "%s"]),
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value."""
    yield path
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in entries:
        yield from places(inner, (*path, key))


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """A copy of the value with another one at the end of the path."""
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(copy[path[0]], path[1:], new)
    return copy


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """A valid folder; each example changes one file of it."""
    folder = Folder(tmp_path_factory.mktemp("any"))
    folder.write_valid()
    return folder


def check(folder: Folder, name: str, text: bytes) -> None:
    """Load the folder with another text in one file, and see that only this file can have suffered."""
    file = folder.path / name
    valid = file.read_bytes()
    folder.write(name, text)
    declarations = folder.load()
    folder.write(name, valid)
    for problem in declarations.problems:
        assert problem.location.file == file
        assert problem.location.line is not None
        assert 1 <= problem.location.line <= max(1, len(text.decode(errors="replace").splitlines()))
        assert str(problem).startswith(f"{file}:{problem.location.line}: ")
    others = {f"{table}.table.yaml" for table in ("bronze.flights", "silver.flights", "reference.airlines")}
    assert {table.file.name for table in declarations.tables.values()} >= others


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(st.data(), VALUES)
def test_any_value_anywhere_in_a_stream(lasting: Folder, data: st.DataObject, value: Any) -> None:
    content = yaml.safe_load(STREAM)
    path = data.draw(st.sampled_from(list(places(content))))
    changed = yaml.dump(replaced(content, path, value), Dumper=yaml.CSafeDumper)
    check(lasting, "silver_flights.stream.yaml", changed.encode())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(st.data(), VALUES)
def test_any_value_anywhere_in_a_table(lasting: Folder, data: st.DataObject, value: Any) -> None:
    content = yaml.safe_load(TABLE.replace("bronze.flights", "other.flights"))
    path = data.draw(st.sampled_from(list(places(content))))
    file = lasting.path / "other.flights.table.yaml"
    file.write_text(yaml.dump(replaced(content, path, value), Dumper=yaml.CSafeDumper))
    declarations = lasting.load()
    file.unlink()
    assert {problem.location.file for problem in declarations.problems} <= {file}
    assert set(declarations.streams) == {"silver_flights"}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(st.integers(0, len(STREAM)), st.integers(0, 40), st.binary(max_size=30))
def test_any_bytes_anywhere(lasting: Folder, start: int, length: int, new: bytes) -> None:
    text = STREAM.encode()
    check(lasting, "silver_flights.stream.yaml", text[:start] + new + text[start + length :])
