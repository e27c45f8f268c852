"""The outputs of a stream are declared in another way between a crash and the next start.

Every run has it without Spark (`test_staged_modes.py` and `test_batch_commands.py` of `tests/integration/publication`).
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.fixtures.streams_of_tables import COLUMNS, dying_at, reading
from tests.fixtures.workshop import Workshop

from sluice.errors import UndeclaredOutputError
from sluice.ledger.batches import recent_batches, record_batch
from sluice.publication.crash_points import CrashPoint
from sluice.publication.settle_output import abandon_output, publish_output


@pytest.fixture
def stream(workshop: Workshop) -> str:
    """A stream that no other test has, whose tables exist."""
    workshop.declare_table("source", COLUMNS)
    workshop.declare_table("target", COLUMNS, partitioning=[{"column": "word"}])
    return f"s{workshop.namespace}"


def declare(workshop: Workshop, stream: str, *, output: str = "copies", table: str = "target", **how: Any) -> None:
    """Declare the stream with one output."""
    workshop.declare_stream(
        stream,
        sql="SELECT id, word FROM records",
        inputs=reading(workshop.table_name("source")),
        outputs={output: {"iceberg": {"table": workshop.table_name(table), **how}}},
    )


def crash(workshop: Workshop, stream: str, *rows: tuple[int, str], at: CrashPoint) -> None:
    """Let a run die on its way with a batch of these rows."""
    workshop.append("source", [{"id": number, "word": word} for number, word in rows])
    with pytest.raises(OSError, match="dies here"):
        workshop.run(stream, reached=dying_at(at))


def ids(workshop: Workshop, table: str = "target") -> list[int]:
    return [row["id"] for row in workshop.rows(table)]


@pytest.mark.full
def test_a_batch_that_was_staged_to_be_appended_does_not_replace_rows(workshop: Workshop, stream: str) -> None:
    declare(workshop, stream)
    workshop.append("source", [{"id": 1, "word": "a"}, {"id": 2, "word": "b"}])
    workshop.run(stream)
    crash(workshop, stream, (3, "b"), at=CrashPoint.STAGED)
    declare(workshop, stream, mode="overwrite_partitions")

    workshop.run(stream)

    assert ids(workshop) == [1, 2, 3]
    workshop.append("source", [{"id": 4, "word": "b"}])
    workshop.run(stream)
    assert ids(workshop) == [1, 4], "what is staged from then on replaces its partitions"


@pytest.mark.full
def test_a_feed_that_is_appended_from_now_on_is_merged_as_it_was_staged(workshop: Workshop, stream: str) -> None:
    workshop.declare_table("changes", {**COLUMNS, "op": "string"})

    def feed(**how: Any) -> None:
        columns = "id, word, op" if how else "id, word"
        workshop.declare_stream(
            stream,
            sql=f"SELECT {columns} FROM records",  # noqa: S608  # our own names
            inputs=reading(workshop.table_name("changes")),
            outputs={"copies": {"iceberg": {"table": workshop.table_name("target"), **how}}},
        )

    feed(mode="merge", keys=["id"], operation_column="op")
    workshop.append("changes", [{"id": number, "word": "a", "op": "c"} for number in (1, 2)])
    workshop.run(stream)
    workshop.append("changes", [{"id": 1, "word": "a", "op": "d"}, {"id": 2, "word": "b", "op": "u"}])
    with pytest.raises(OSError, match="dies here"):
        workshop.run(stream, reached=dying_at(CrashPoint.STAGED))
    feed()

    workshop.run(stream)

    assert workshop.rows("target") == [{"id": 2, "word": "b"}], "the delete is a delete"
    workshop.append("changes", [{"id": 2, "word": "c", "op": "u"}])
    workshop.run(stream)
    assert ids(workshop) == [2, 2]


@pytest.mark.full  # every run: `test_batch_commands.py`
def test_a_renamed_output_gets_a_visible_batch_once(workshop: Workshop, stream: str) -> None:
    declare(workshop, stream)
    crash(workshop, stream, (1, "a"), at=CrashPoint.PUBLISHED)
    workshop.run(stream)
    workshop.forget_last_commit(stream)
    declare(workshop, stream, output="renamed")

    workshop.run(stream)

    assert ids(workshop) == [1]


@pytest.mark.full
def test_rows_of_a_quarantine_that_was_switched_off_are_not_lost_silently(workshop: Workshop, stream: str) -> None:
    """A query that reads its input once with and without a quarantine; otherwise Spark refuses the checkpoint."""
    workshop.declare_table("changes", {**COLUMNS, "op": "string"})

    def feed(*, quarantine: bool) -> None:
        how = {"mode": "merge", "keys": ["id"], "operation_column": "op"}
        workshop.declare_stream(
            stream,
            sql="SELECT id, word, op FROM records",
            inputs=reading(workshop.table_name("changes")),
            outputs={"copies": {"iceberg": {"table": workshop.table_name("target"), **how}}},
            quarantine=quarantine,
        )

    feed(quarantine=True)
    workshop.append("changes", [{"id": 1, "word": "a", "op": "c"}, {"id": 2, "word": "b", "op": "unknown"}])
    with pytest.raises(OSError, match="dies here"):
        workshop.run(stream, reached=dying_at(CrashPoint.STAGED))
    feed(quarantine=False)

    with pytest.raises(UndeclaredOutputError, match=r"1 batch with 1 rows is staged for quarantine") as refusal:
        workshop.run(stream)
    assert f"sluice batch publish {stream} quarantine" in refusal.value.next_step

    declaration = workshop.stream(stream).declaration
    publish_output(workshop.catalog, workshop.ledger, declaration, output="quarantine", requested_by="ann")
    workshop.run(stream)
    assert ids(workshop) == [1]
    assert len(workshop.rows(f"quarantine.{stream}")) == 1
    (batch,) = recent_batches(workshop.ledger, stream, limit=9)
    assert (batch.published_rows, batch.refused_rows) == ({"copies": 1}, 1)

    workshop.append("changes", [{"id": 3, "word": "c", "op": "c"}])
    workshop.run(stream)
    feed(quarantine=True)
    workshop.append("changes", [{"id": 4, "word": "d", "op": "unknown"}])
    workshop.run(stream)
    assert ids(workshop) == [1, 3]
    assert len(workshop.rows(f"quarantine.{stream}")) == 2, "it continues where the checkpoint stands"


@pytest.mark.full
def test_a_chain_for_another_table_blocks_until_it_is_abandoned(workshop: Workshop, stream: str) -> None:
    workshop.declare_table("other", COLUMNS)
    declare(workshop, stream)
    crash(workshop, stream, (1, "a"), at=CrashPoint.STAGED)
    declare(workshop, stream, table="other")

    with pytest.raises(UndeclaredOutputError, match=f"staged for {workshop.table_name('target')}"):
        workshop.run(stream)

    abandon_output(
        workshop.catalog,
        workshop.ledger,
        workshop.stream(stream).declaration,
        output="copies",
        requested_by="ann",
    )
    workshop.run(stream)
    assert (ids(workshop), ids(workshop, "other")) == ([], [1]), "Spark had not committed it, and runs it again"


@pytest.mark.full
def test_the_last_table_of_a_stream_is_not_forgotten(workshop: Workshop, stream: str) -> None:
    declare(workshop, stream)
    workshop.append("source", [{"id": 1, "word": "a"}])
    for batch in workshop.run(stream).batches:
        record_batch(workshop.ledger, batch)
    crash(workshop, stream, (2, "b"), at=CrashPoint.STAGED)
    workshop.declare_stream(
        stream,
        sql="SELECT id, word FROM records",
        inputs=reading(workshop.table_name("source")),
        outputs={"kept": {"memory": {}}},
    )

    with pytest.raises(UndeclaredOutputError, match="1 batch with 1 rows is staged"):
        workshop.run(stream)
