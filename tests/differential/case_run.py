"""Runs a case in a workshop, with its crash, and compares what came of it with what the oracle says."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tests.differential.case import Case, Output, Row
from tests.differential.column_kinds import plain
from tests.differential.engine import engine_of
from tests.differential.oracle import Expected, Numbers, expected
from tests.differential.queries import has_one_query, python_transformation, sql_transformation
from tests.differential.sources import ArrivingRows, cut, with_files
from tests.fixtures.streams_of_tables import dying_at
from tests.fixtures.workshop import Workshop

from sluice.errors import DeliveryError
from sluice.ledger.batches import BatchObservation, recent_batches
from sluice.publication.crash_points import CrashPoint, unnoticed
from sluice_spark.run.stop_request import StopReason, StopRequest

_LONGEST_RUN_SECONDS = 600
"""After which a run that still waits for its rows is stopped: far longer than any takes on a crowded machine."""

_SHOWN = 4
"""Rows of a difference that are printed."""


def differences(workshop: Workshop, case: Case) -> list[str]:
    """Run a case; what differs from the oracle, one line each."""
    folder = workshop.folder.parent
    running = _Running(case=case, workshop=replace(workshop, settings=with_files(workshop.settings, folder)))
    with engine_of(workshop.spark, case.seed):
        running.declare()
        for turn, rows in enumerate(case.turns):
            if not running.take(turn, rows):
                break
    return running.compared()


@dataclass(slots=True, kw_only=True)
class _Running:
    case: Case
    workshop: Workshop
    refusal: str = ""
    brought: list[Sequence[Row]] = field(default_factory=list)
    hung: bool = False
    interrupted: range = range(0)
    lookup_changes_at: Sequence[int | None] = (None,)

    @property
    def stream(self) -> str:
        return f"s{self.workshop.namespace}"

    @property
    def source(self) -> ArrivingRows:
        return self._source

    _source: ArrivingRows = field(init=False)

    def __post_init__(self) -> None:
        self._source = ArrivingRows(case=self.case, workshop=self.workshop)

    def declare(self) -> None:
        self.source.create()
        inputs = {"records": self.source.declaration}
        how = dict(self.source.how)
        if self.case.source == "kafka":
            how["quarantine"] = True  # without one no value is decoded
        if self.case.join is not None:
            table = self.workshop.declare_table("lookup", {"k2": "string", "label": "string"}, is_created=False)
            inputs["lookup"] = {"static": {"iceberg": {"table": table}}}
        self.declare_targets()
        outputs = {
            f"output{number}": {"iceberg": self._declared(f"output{number}", output)}
            for number, output in enumerate(self.case.outputs)
        }
        text = {"sql": sql_transformation(self.case)} if has_one_query(self.case) else {}
        text = text or {"python": python_transformation(self.case)}
        self.workshop.declare_stream(
            self.stream,
            inputs=inputs,
            outputs=outputs,
            state={"shuffle_partitions": 1},
            **text,
            **how,
        )
        if self.case.join is not None and self.case.lookup:
            self.workshop.append("lookup", self.case.lookup)

    def declare_targets(self, **evolved: Any) -> None:
        for number, output in enumerate(self.case.outputs):
            fields = evolved.get("partitioning", output.partitioning)
            partitioning = [
                {"column": column, "transform": transform, **({"width": width} if width else {})}
                for column, transform, width in fields
            ]
            self.workshop.declare_table(
                f"output{number}", self.case.output_columns, is_created=False, partitioning=partitioning
            )

    def _declared(self, table: str, output: Output) -> dict[str, Any]:
        declared: dict[str, Any] = {"table": self.workshop.table_name(table), "mode": output.mode}
        if output.mode == "merge":
            declared |= {"keys": list(output.keys)}
            declared |= {"ordering_columns": list(output.ordering)} if output.ordering else {}
            declared |= {"operation_column": "op"} if output.is_feed else {}
        return declared

    def take(self, turn: int, rows: Sequence[Row]) -> bool:
        """Bring the rows of a turn and run the stream. Returns whether it goes on."""
        evolution = self.case.evolution
        if evolution is not None and evolution.turn == turn:
            if evolution.kind == "source_column":
                self.source.add_column()
            else:
                self.declare_targets(partitioning=evolution.partitioning)
                self.workshop.create_tables()
        for batch in cut(self.case, rows):
            self.source.bring(batch)
            self.brought.append(batch)
        crash = self.case.crash
        try:
            if crash is not None and crash.turn == turn:
                self.lookup_changes_at = self._crash()
                if self.case.lookup_added:
                    self.workshop.append("lookup", self.case.lookup_added)
            self._run()
        except DeliveryError as error:
            self.refusal = str(error)
        return not self.refusal

    def _crash(self) -> Sequence[int]:
        """Run until the driver dies. Returns the batches that may be the first one that sees what changes now: one that
        was staged as a whole is not computed again."""
        crash = self.case.crash
        assert crash is not None
        if crash.point is None:
            self._run()
            self.workshop.forget_last_commit(self.stream)
            return (self._newest("offsets") + 1,)
        try:
            self._run(reached=dying_at(crash.point))
        except Exception as error:  # py4j wraps what is raised in a callback
            if "the driver dies here" not in _chain(error):
                raise
        planned, committed = self._newest("offsets"), self._newest("commits")
        self.interrupted = range(len(self._recorded()), committed + 1)
        if planned == committed:
            return (planned + 1,)
        if crash.point in (CrashPoint.BATCH_BEGUN, CrashPoint.FIRST_OUTPUT_STAGED):
            return (planned,)
        if crash.point in (CrashPoint.STAGED, CrashPoint.AUDITED):
            return (planned + 1,)
        return (planned, planned + 1)  # Spark may have worked on the next batch while this one was published

    def _newest(self, log: str) -> int:
        """The newest batch in a log of the checkpoint."""
        files = (self.workshop.checkpoint(self.stream) / log).glob("*")
        return max((int(file.name) for file in files if file.name.isdigit()), default=-1)

    def _run(self, *, reached: Any = unnoticed) -> None:
        stop = StopRequest()
        limit = threading.Timer(_LONGEST_RUN_SECONDS, self._give_up, (stop,))
        if self.case.source == "iceberg_continuous" and self._has_all():
            return
        limit.start()
        try:
            self.workshop.run(self.stream, stop_when=self._is_last, stop=stop, reached=reached, is_recorded=True)
        finally:
            limit.cancel()

    def _give_up(self, stop: StopRequest) -> None:
        self.hung = True
        stop.make(StopReason.STOPPED)

    def _is_last(self, _batch: BatchObservation) -> bool:
        return self.case.source == "iceberg_continuous" and self._has_all()

    def _has_all(self) -> bool:
        arrived = [batch for batch in self._recorded() if batch.start_offsets != batch.end_offsets]
        return len(arrived) >= len(self.brought)

    def _recorded(self) -> list[BatchObservation]:
        return list(reversed(recent_batches(self.workshop.ledger, self.stream, limit=1000)))

    def compared(self) -> list[str]:
        return min((self._compared(at) for at in self.lookup_changes_at), key=len)

    def _compared(self, lookup_changes_at: int | None) -> list[str]:
        found = self._recorded()
        right = expected(self.case, self._as_cut(found), lookup_changes_at=lookup_changes_at)
        wrong = ["the run did not end by itself"] if self.hung else []
        if not right.refusal and self.refusal:
            return [*wrong, f"refused: {self.refusal}"]
        if right.refusal not in self.refusal:
            wrong.append(f"the batch {len(right.batches)} was not refused with {right.refusal!r}: {self.refusal!r}")
        numbers = _different_numbers(found, right.batches, interrupted=self.interrupted)
        return [*wrong, *numbers, *self._different_rows(right)]

    def _as_cut(self, found: Sequence[BatchObservation]) -> list[Sequence[Row]]:
        """The rows as Spark cut them: batches without rows follow those that move the watermark."""
        rows = iter(self.brought)
        return [*(next(rows, ()) if batch.start_offsets != batch.end_offsets else () for batch in found), *rows]

    def _different_rows(self, right: Expected) -> list[str]:
        names = list(self.case.output_columns)
        wrong = []
        for table, rows in right.tables.items():
            held = self.workshop.table(table).scan().to_arrow().to_pylist()
            got = Counter(tuple(plain(row[name]) for name in names) for row in held)
            wanted = Counter(tuple(plain(value) for value in row) for row in rows)
            for word, difference in (("too many", got - wanted), ("missing", wanted - got)):
                if difference:
                    listed = "; ".join(str(row) for row in list(difference.elements())[:_SHOWN])
                    wrong.append(f"{table}: {difference.total()} rows {word}, {tuple(names)}: {listed}")
        return wrong


def _different_numbers(found: Sequence[BatchObservation], right: Sequence[Numbers], *, interrupted: range) -> list[str]:
    """Which numbers of the ledger differ.

    interrupted: the batches that Spark had committed and the ledger did not have when the driver died. They never run
        again, so that only the rows that they publish are known.
    """
    got = [
        Numbers(
            input_rows=batch.input_rows,
            published=dict(batch.published_rows),
            late=batch.late_rows,
            duplicate=batch.duplicate_rows,
            refused=batch.refused_rows,
        )
        for batch in found
    ]
    if unknown := {name for batch in found for name in batch.end_offsets if name.partition(" (")[0] != "records"}:
        return [f"the ledger has offsets of inputs that are not declared: {', '.join(sorted(unknown))}"]
    if len(got) != len(right):
        return [f"the ledger has {len(got)} batches, {len(right)} are right"]
    return [
        f"batch {number}: the ledger has {mine}, right is {theirs}"
        for number, (mine, theirs) in enumerate(zip(got, right, strict=True))
        if (mine.published != theirs.published if number in interrupted else mine != theirs)
    ]


def _chain(error: BaseException | None) -> str:
    texts = []
    while error is not None:
        texts.append(str(error))
        error = error.__cause__ or error.__context__
    return " ".join(texts)
