"""Counts lost and doubled rows with a reader independent of the writers: pyiceberg finds files, DuckDB counts.

A look costs what is new: a data file never changes, and neither does a manifest, so each is read once. A file that has
left a table leaves the copy too. The checks are those of the demo, against everything that lies in Kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.table import Table

from sluice.demo import verification
from sluice.demo.flights_topic import FlightsTopic
from sluice.demo.lakehouse_copy import SEEN, CheckResult, create_schema_of, open_database
from sluice.demo.proof import load_oracle
from sluice.demo.replay_plan import ReplayPlan

TABLES = ("bronze.flights", "silver.flights", "quarantine.silver_flights", "gold.delays_by_carrier_hour")

CHECKS: Sequence[Callable[[duckdb.DuckDBPyConnection], CheckResult]] = (
    verification.bronze_holds_every_record_once,
    verification.silver_holds_each_flight_once,
    verification.silver_holds_the_flights,
    verification.quarantine_holds_the_malformed_records,
    verification.gold_by_carrier_equals_the_csv,
)

_SENT_ONLY = "create or replace table planned as from planned semi join sent using (plan, sequence)"
"""The drill ends within a plan: only what was sent of it is owed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What the tables hold against what was sent. problems: a sentence for each check that failed."""

    sent: int
    lost: int
    duplicated: int
    problems: tuple[str, ...]


UNJUDGED = Judgement(sent=0, lost=0, duplicated=0, problems=())
"""The difference of tables that could not be read; the reason is reported by the read that failed."""


@dataclass(slots=True, kw_only=True)
class TableCopies:
    """Copies of tables in a DuckDB database, as `seen.<namespace>.<table>`, each with the column `data_file` beside."""

    catalog: Catalog
    database: duckdb.DuckDBPyConnection
    _files_of: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _copied: dict[str, set[str]] = field(default_factory=dict)

    def refresh(self, name: str) -> None:
        """Bring the copy of a table, `<namespace>.<table>`, to what the table holds now.

        Raises
        ------
        AssertionError: when the table has delete files, which this reader does not apply.
        """
        table = self.catalog.load_table(name)
        living = set(self._living_files(table))
        if name not in self._copied:
            self._create(name, table)
        copied = self._copied[name]
        for gone in copied - living:
            self.database.execute(f"delete from {SEEN}.{name} where data_file = ?", [gone])  # noqa: S608  # our own name
        for new in living - copied:
            with table.io.new_input(new).open() as stream:
                rows = pq.read_table(pa.BufferReader(stream.read()))
            self.database.register("loading", rows.append_column("data_file", pa.array([new] * len(rows), pa.string())))
            # By name: a file has the columns of the table, in whatever order they were written.
            self.database.execute(f"insert into {SEEN}.{name} by name from loading")
            self.database.unregister("loading")
        self._copied[name] = living

    def _create(self, name: str, table: Table) -> None:
        create_schema_of(self.database, name)
        self.database.register("loading", table.schema().as_arrow().empty_table())
        self.database.execute(
            f"create table {SEEN}.{name} as select *, ''::varchar as data_file from loading"  # noqa: S608  # ours
        )
        self.database.unregister("loading")
        self._copied[name] = set()

    def _living_files(self, table: Table) -> list[str]:
        snapshot = table.current_snapshot()
        if snapshot is None:
            return []
        return [file for manifest in snapshot.manifests(table.io) for file in self._files_in(manifest, table)]

    def _files_in(self, manifest: ManifestFile, table: Table) -> tuple[str, ...]:
        if manifest.content is not ManifestContent.DATA:
            raise AssertionError(f"{'.'.join(table.name())} has delete files, which this reader does not apply")
        if manifest.manifest_path not in self._files_of:
            entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
            self._files_of[manifest.manifest_path] = tuple(entry.data_file.file_path for entry in entries)
        return self._files_of[manifest.manifest_path]


class Judge:
    """Compares the tables with the topic. Streams must have read everything, and nothing may be sent meanwhile."""

    def __init__(self, *, catalog: Catalog, topic: FlightsTopic) -> None:
        self._topic = topic
        self._database = open_database()
        self._copies = TableCopies(catalog=catalog, database=self._database)

    def judge(self, plans: Sequence[ReplayPlan]) -> Judgement:
        """Look now.

        Parameters
        ----------
        plans: what was sent, the last of them perhaps in part.
        """
        sent = self._topic.read()
        load_oracle(self._database, sent=sent, plans=plans, weather_days=())
        self._database.execute(_SENT_ONLY)
        for table in TABLES:
            self._copies.refresh(table)
        results = [check(self._database) for check in CHECKS]
        return Judgement(
            sent=sent.num_rows,
            lost=sum(result.missing_rows for result in results),
            duplicated=sum(result.surplus_rows for result in results),
            problems=tuple(result.explanation for result in results if not result.is_true),
        )
