"""A table and a sink beside it hold the same rows of a batch, also when a static input changes before it runs again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import duckdb
import pytest
from tests.fixtures.streams_of_tables import dying_at
from tests.fixtures.workshop import Workshop

from sluice.publication.crash_points import CrashPoint
from sluice.settings import FilesConnection

OLD, NEW = [(1, "one")], [(1, "another"), (1, "one")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Looking:
    """A stream of ids that looks words up, for a table and a folder. folder: where its files are."""

    workshop: Workshop
    folder: Path

    @property
    def stream(self) -> str:
        """Its name."""
        return f"s{self.workshop.namespace}"

    def declare(self, **words: Any) -> None:
        """Declare it. words: further keys of the table that is looked up."""
        source, table = self.workshop.table_name("records"), self.workshop.table_name("words")
        self.workshop.declare_stream(
            self.stream,
            python="""
                def transform(records, words):
                    found = records.join(words, "id")
                    return {"found": found, "sent": found}
            """,
            inputs={
                "records": {"stream": {"iceberg": {"table": source}}},
                "words": {"static": {"iceberg": {"table": table, **words}}},
            },
            outputs={
                "found": {"iceberg": {"table": self.workshop.table_name("found")}},
                "sent": {"files": {"connection": "here", "path": "sent", "format": "json"}},
            },
        )

    def die(self, point: CrashPoint) -> None:
        """Run until a crash point, then let the table that is looked up change."""
        with pytest.raises(OSError, match="dies here"):
            self.workshop.run(self.stream, reached=dying_at(point))
        self.workshop.append("words", [{"id": 1, "word": "another"}])

    def rows(self) -> tuple[list[tuple[int, str]], list[tuple[int, str]]]:
        """What the table and the files hold."""
        with duckdb.connect() as database:
            files = database.execute(f"SELECT id, word FROM read_json('{self.folder}/sent/**/*.json')").fetchall()  # noqa: S608  # our own folder
        return sorted((row["id"], row["word"]) for row in self.workshop.rows("found")), sorted(files)

    def kept(self) -> list[str]:
        """The copies of the sink's rows in the checkpoint."""
        folder = self.workshop.checkpoint(self.stream) / "sink_rows"
        return [one.name for one in folder.iterdir()] if folder.exists() else []


@pytest.fixture
def looking(workshop: Workshop, tmp_path: Path) -> Looking:
    """The stream's tables, with a row that waits."""
    here = FilesConnection(kind="files", root=tmp_path.as_uri())
    connections = {**workshop.settings.connections, "here": here}
    own = replace(workshop, settings=workshop.settings.model_copy(update={"connections": connections}))
    own.declare_table("records", {"id": "long"})
    for table in ("words", "found"):
        own.declare_table(table, {"id": "long", "word": "string"})
    own.append("words", [{"id": 1, "word": "one"}])
    own.append("records", [{"id": 1}])
    return Looking(workshop=own, folder=tmp_path)


@pytest.mark.parametrize(
    ("point", "rows"),
    [
        pytest.param(CrashPoint.BATCH_BEGUN, NEW, marks=pytest.mark.full),  # nothing is kept yet
        (CrashPoint.STAGED, OLD),
        pytest.param(CrashPoint.PUBLISHED, OLD, marks=pytest.mark.full),
    ],
)
def test_a_sink_gets_the_rows_of_its_table_wherever_the_driver_died(
    looking: Looking, point: CrashPoint, rows: list[tuple[int, str]]
) -> None:
    looking.declare()
    looking.die(point)

    (batch,) = looking.workshop.run(looking.stream).batches

    assert looking.rows() == (rows, rows)
    assert batch.published_rows == {"found": len(rows), "sent": len(rows)}


@pytest.mark.full
def test_the_rows_of_one_batch_alone_are_kept(looking: Looking) -> None:
    looking.declare()
    looking.workshop.run(looking.stream)
    looking.workshop.append("records", [{"id": 1}])
    looking.workshop.run(looking.stream)

    (name,) = looking.kept()
    assert name.startswith("1-")
    assert looking.rows() == ([*OLD, *OLD], [*OLD, *OLD])


@pytest.mark.full  # it saves a copy
def test_nothing_is_kept_where_the_static_input_cannot_change(looking: Looking) -> None:
    snapshot = looking.workshop.table("words").metadata.current_snapshot_id
    looking.declare(snapshot_id=snapshot)
    looking.die(CrashPoint.PUBLISHED)

    looking.workshop.run(looking.stream)

    assert looking.kept() == []
    assert looking.rows() == (OLD, OLD)
