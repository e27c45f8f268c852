"""What keeps the schemas of inputs neither asks a ledger that is away for each file, nor writes for each file."""

from __future__ import annotations

from typing import Any, cast

import pyarrow as pa
import pytest

from sluice.declarations.source_declarations import FilesSource
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.errors import LedgerUnreachableError
from sluice.ledger.source_schemas import SeenSchema
from sluice.sources import seen_schemas
from sluice.sources.seen_schemas import AWAY_SECONDS, KeptSchemas, SchemaSightings

FILES = {"connection": "here", "path": "in", "format": "parquet", "columns": [{"name": "id", "type": "long"}]}
DECLARED: dict[str, Any] = {
    "stream": "s",
    "description": "d",
    "owner": "o",
    "mode": "continuous",
    "trigger": {"processing_time": "1 second"},
    "transformation": {"sql": "s.sql"},
    "inputs": {"i": {"stream": {"files": FILES}}},
    "outputs": {"main": {"iceberg": {"table": "a.b", "mode": "append"}}},
    "quarantine": True,
}
SOURCE = FilesSource.model_validate(FILES)
ONE = pa.schema([pa.field("id", pa.int64())])
OTHER = pa.schema([*ONE, pa.field("more", pa.string())])


class Kept:
    """A ledger that takes schemas, while it is not away."""

    def __init__(self) -> None:
        self.is_away = False
        self.tries = 0
        self.taken: list[SeenSchema] = []

    def record(self, _ledger: object, _stream: str, seen: SeenSchema) -> bool:
        self.tries += 1
        if self.is_away:
            raise LedgerUnreachableError("away")
        self.taken.append(seen)
        return True


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Kept:
    ledger = Kept()
    monkeypatch.setattr(seen_schemas, "record_seen_schema", ledger.record)
    return ledger


def sightings() -> SchemaSightings:
    return SchemaSightings(StreamDeclaration.model_validate(DECLARED), cast(Any, None), cast(Any, "a ledger"))


def seen(kind: str, *, is_one_of_many: bool = True) -> SeenSchema:
    return SeenSchema(input="i", source="files", fields={"id": kind}, answer="", is_one_of_many=is_one_of_many)


def test_a_ledger_that_is_away_is_tried_once_and_not_for_each_file(kept: Kept) -> None:
    kept.is_away, files = True, sightings()

    for _ in range(100):
        files.see_file("i", SOURCE, ONE, True)

    assert kept.tries == 1


def test_files_of_two_senders_by_turns_are_no_write_each(kept: Kept) -> None:
    files = sightings()

    for number in range(101):
        files.see_file("i", SOURCE, ONE if number % 2 else OTHER, True)

    assert len(kept.taken) == 2


def test_the_schema_of_the_last_file_of_a_batch_is_the_last_one(kept: Kept) -> None:
    files = sightings()
    for columns in (ONE, OTHER, ONE):
        files.see_file("i", SOURCE, columns, True)

    files.end_files()
    files.end_files()

    assert [len(one.fields) for one in kept.taken] == [1, 2, 1]


def test_a_schema_that_the_ledger_missed_is_kept_once_it_is_back(kept: Kept) -> None:
    now = [0.0]
    schemas = KeptSchemas("s", cast(Any, "a ledger"), clock=lambda: now[0])
    kept.is_away = True
    assert not schemas.see(seen("long"))
    kept.is_away = False

    now[0] = AWAY_SECONDS - 1
    assert not schemas.see(seen("long"))
    now[0] = AWAY_SECONDS
    assert schemas.see(seen("long"))

    assert kept.tries == 2
    assert kept.taken == [seen("long")]


def test_a_file_that_the_ledger_missed_is_seen_again(kept: Kept) -> None:
    files, now = sightings(), [0.0]
    files._kept = KeptSchemas("s", cast(Any, "a ledger"), clock=lambda: now[0])
    kept.is_away = True
    files.see_file("i", SOURCE, ONE, True)

    kept.is_away, now[0] = False, AWAY_SECONDS
    files.see_file("i", SOURCE, ONE, True)

    assert len(kept.taken) == 1


def test_a_table_whose_schema_goes_back_is_a_write_each_time(kept: Kept) -> None:
    schemas = KeptSchemas("s", cast(Any, "a ledger"))

    for kind in ("int", "long", "int", "int"):
        schemas.see(seen(kind, is_one_of_many=False))

    assert [one.fields["id"] for one in kept.taken] == ["int", "long", "int"]


def test_schemas_without_end_are_not_remembered_without_end(kept: Kept) -> None:
    schemas = KeptSchemas("s", cast(Any, "a ledger"))

    for number in range(1_000):
        schemas.see(seen(f"type {number}"))

    assert len(kept.taken) == 1_000
    assert len(schemas._kept["i"]) <= 200
