"""What values were written with is looked at beside the batches: nothing waits for a registry, or asks it for ever."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.errors import LedgerUnreachableError, RegistryError, RegistryUnreachableError
from sluice.ledger.source_schemas import SeenSchema
from sluice.record_values import registry
from sluice.record_values.block_facts import WrittenAs, WrittenValues
from sluice.settings import SchemaRegistryConnection
from sluice.sources import seen_schemas
from sluice.sources.seen_schemas import AWAY_SECONDS, WrittenSchemas

VALUE = {"format": "avro", "registry": "reg", "subject": "t-value"}
DECLARED: dict[str, Any] = {
    "stream": "s",
    "description": "d",
    "owner": "o",
    "mode": "continuous",
    "trigger": {"processing_time": "1 second"},
    "transformation": {"sql": "s.sql"},
    "inputs": {"i": {"stream": {"kafka": {"connection": "k", "topics": ["t"], "value": VALUE}}}},
    "outputs": {"main": {"iceberg": {"table": "a.b", "mode": "append"}}},
    "quarantine": True,
}
GOOD, REJECTED = WrittenValues(values=1), WrittenValues(values=1, rejected=1)
TWO: dict[str, WrittenAs] = {"i": {"5": GOOD, "6": GOOD}}


class Settings:
    """Settings with one registry."""

    def __init__(self, url: str) -> None:
        self._connection = SchemaRegistryConnection(kind="schema_registry", url=url)

    def connection(self, name: str, kind: object) -> SchemaRegistryConnection:
        return self._connection


def schemas(
    *, ledger: object = "a ledger", url: str = "http://127.0.0.1:9", clock: Callable[[], float] = time.monotonic
) -> WrittenSchemas:
    declaration = StreamDeclaration.model_validate(DECLARED)
    return WrittenSchemas(declaration, cast(Any, Settings(url)), cast(Any, ledger), clock=clock)


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[SeenSchema]:
    """What the ledger is given."""
    found: list[SeenSchema] = []
    monkeypatch.setattr(seen_schemas, "record_seen_schema", lambda ledger, stream, seen: found.append(seen))
    return found


class Asked:
    """A registry that has every schema, or raises."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ids: list[int] = []
        self.errors: dict[int, Exception] = {}
        monkeypatch.setattr(seen_schemas, "described_schema", self.describe)

    def describe(self, _connection: object, schema_id: int, *, message: str | None) -> dict[str, str]:
        self.ids.append(schema_id)
        if schema_id in self.errors:
            raise self.errors[schema_id]
        return {f"f{schema_id}": "int"}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    return Asked(monkeypatch)


@pytest.fixture
def silent_server() -> Iterator[str]:
    """A server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def test_nothing_waits_for_a_registry_but_the_end_of_the_run_for_a_while(
    monkeypatch: pytest.MonkeyPatch, kept: list[SeenSchema], silent_server: str
) -> None:
    monkeypatch.setattr(registry, "_ANSWER_SECONDS", 0.7)
    monkeypatch.setattr(seen_schemas, "_END_SECONDS", 0.2)
    seen = schemas(url=silent_server)

    before = time.monotonic()
    for number in range(50):
        seen.hand_over(TWO, f"1:{number}")
    handed_over = time.monotonic()
    seen.close()

    assert handed_over - before < 0.5
    assert time.monotonic() - handed_over < 0.6
    assert kept == []
    assert seen._thread is not None
    seen._thread.join(10)  # after the request that was under way
    assert not seen._thread.is_alive()


def test_the_end_of_a_run_waits_for_no_room_and_leaves_no_thread(
    monkeypatch: pytest.MonkeyPatch, kept: list[SeenSchema]
) -> None:
    begun, answers, asked = threading.Event(), threading.Event(), list[int]()

    def late(_connection: object, schema_id: int, *, message: str | None) -> dict[str, str]:
        asked.append(schema_id)
        begun.set()
        answers.wait(10)
        return {f"f{schema_id}": "int"}

    monkeypatch.setattr(seen_schemas, "described_schema", late)
    monkeypatch.setattr(seen_schemas, "_END_SECONDS", 0.1)
    late_answer = threading.Timer(1.5, answers.set)
    seen = schemas()
    seen.hand_over(TWO, "1:0")
    assert begun.wait(5)
    for number in range(1, 50):
        seen.hand_over(TWO, f"1:{number}")

    late_answer.start()
    seen.close()

    assert not answers.is_set()
    late_answer.join()
    assert seen._thread is not None
    seen._thread.join(5)
    assert not seen._thread.is_alive()
    assert asked == [5]


def test_what_is_handed_over_is_kept_before_the_end_of_the_run(kept: list[SeenSchema], asked: Asked) -> None:
    seen = schemas()

    seen.hand_over(TWO, "1:0")
    seen.close()
    seen.hand_over({"i": {"7": GOOD}}, "1:1")

    assert [one.source for one in kept] == ["schema 5 of reg", "schema 6 of reg"]
    assert not [one for one in threading.enumerate() if one is seen._thread]


def test_a_defect_at_one_batch_does_not_end_the_look_at_the_next(kept: list[SeenSchema], asked: Asked) -> None:
    asked.errors[5] = LookupError("a defect")
    seen = schemas()

    seen.hand_over({"i": {"5": GOOD}}, "1:0")
    seen.hand_over({"i": {"6": GOOD}}, "1:1")
    seen.close()

    assert [one.source for one in kept] == ["schema 6 of reg"]


def test_a_registry_that_is_away_is_not_asked_again_by_each_batch(kept: list[SeenSchema], asked: Asked) -> None:
    now = [0.0]
    asked.errors = {5: RegistryUnreachableError("away"), 6: RegistryUnreachableError("away")}
    seen = schemas(clock=lambda: now[0])

    for number in range(20):
        seen.look_at(TWO, f"1:{number}")
    assert asked.ids == [5]

    asked.errors, now[0] = {}, AWAY_SECONDS
    seen.look_at(TWO, "1:20")
    assert [one.source for one in kept] == ["schema 5 of reg", "schema 6 of reg"]


def test_a_schema_that_the_registry_refuses_is_asked_for_once(kept: list[SeenSchema], asked: Asked) -> None:
    asked.errors = {5: RegistryError("refused"), 7: RegistryError("refused")}
    seen = schemas()

    for number in range(3):
        seen.look_at({"i": {"5": GOOD, "6": GOOD, "7": GOOD}}, f"1:{number}")

    assert asked.ids == [5, 6, 7]
    assert [one.source for one in kept] == ["schema 6 of reg"]


def test_the_schemas_that_the_ledger_missed_are_kept_once_it_is_back(
    monkeypatch: pytest.MonkeyPatch, asked: Asked
) -> None:
    found: list[str] = []
    is_away, now = [True], [0.0]

    def record(_ledger: object, _stream: str, seen: SeenSchema) -> bool:
        if is_away[0]:
            raise LedgerUnreachableError("away")
        found.append(seen.source)
        return True

    monkeypatch.setattr(seen_schemas, "record_seen_schema", record)
    seen = schemas(clock=lambda: now[0])

    seen.look_at(TWO, "1:0")
    is_away[0], now[0] = False, AWAY_SECONDS
    seen.look_at(TWO, "1:1")

    assert found == ["schema 5 of reg", "schema 6 of reg"]


def test_a_sender_that_goes_back_is_seen_last_again(kept: list[SeenSchema], asked: Asked) -> None:
    seen = schemas()

    for written in ({"5": GOOD}, {"5": GOOD, "6": GOOD}, {"5": GOOD, "6": GOOD}, {"5": GOOD}):
        seen.look_at({"i": written}, "1:0")

    assert [one.source for one in kept] == ["schema 5 of reg", "schema 6 of reg", "schema 5 of reg"]


def test_a_run_that_keeps_nothing_asks_no_registry(asked: Asked) -> None:
    seen = schemas(ledger=None)

    seen.hand_over(TWO, "1:0")
    seen.close()

    assert asked.ids == []


def test_ids_without_end_are_neither_known_nor_asked_for_without_end(kept: list[SeenSchema], asked: Asked) -> None:
    """Bytes that begin with zero and are no id: 20 of each block of 10,000 values come to the driver."""
    seen = schemas()

    for batch in range(5):
        ids = {str(batch * 1_000 + number): REJECTED for number in range(1_000)}
        seen.look_at({"i": ids}, f"1:{batch}")
    seen.look_at({"i": {"9999": GOOD}}, "1:5")

    assert len(asked.ids) <= 1_001
    assert kept[-1].source == "schema 9999 of reg"
    assert len(seen._is_usable["i"]) <= 1_000
