"""What a page asks Airflow to run for a person: the maintenance of a table, backfills, what is decided about a
batch; and which days, hours or months can be chosen for a backfill: from the first that has rows to the last that is
closed.

The plans are those of the command line. A page looks at a table for such a plan only, when a person asks for it, and
within a bound. Both ends of the choice are hints of a form; the plan, which the form leads to, decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Literal

from pyiceberg.catalog import Catalog
from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table

from sluice.backfill.backfill_plan import BackfillPlan
from sluice.backfill.interval_gaps import last_closed
from sluice.backfill.intervals import Follower, Interval, declarations_digest, divide, floor_time, followers_of
from sluice.backfill.observe_backfill import backfill_of, backfilled_output, plan_with_followers
from sluice.declarations.loaded_declarations import Declarations, LoadedStream
from sluice.errors import LakehouseError
from sluice.ledger.batches import newest_batch
from sluice.ledger.connection import Ledger, database_time
from sluice.ledger.events import REQUESTED, Actor, Event, EventAction, EventSubject, record_event
from sluice.ledger.held_batches import HeldBatch
from sluice.maintenance.maintained_tables import find_declaration, plan_table_maintenance
from sluice.maintenance.maintenance_plan import MaintenancePlan
from sluice.maintenance.maintenance_records import maintenance_operation
from sluice.operations import OperationPlan, OperationVerb, steps_of
from sluice.pages.table_looks import BoundedLooks
from sluice.publication.batch_rejection import Rejection
from sluice.publication.held_decisions import broken_samples, plan_about_batch
from sluice.publication.staged_batch import staged_outputs
from sluice.settings import Settings
from sluice.supervision.platform_dags import MAINTENANCE_DAG
from sluice.supervision.supervision_values import command_event
from sluice.tables.catalog import catalog_refusals, open_catalog
from sluice.tables.declared_tables import load_table, require_table

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FORMS = {"hour": "%Y-%m-%dT%H:00", "day": "%Y-%m-%d", "month": "%Y-%m-01"}
_PATTERNS = {"hour": r"\d{4}-\d{2}-\d{2}T\d{2}:00", "day": r"\d{4}-\d{2}-\d{2}", "month": r"\d{4}-\d{2}-01"}
_EXAMPLES = {"hour": "YYYY-MM-DDThh:00", "day": "YYYY-MM-DD", "month": "YYYY-MM-01"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoosableDays:
    """What the form offers, in ISO 8601.

    first: the first with rows; empty where no partition shows it. last: the newest of which no window or join is open
    for certain, and end the one behind it. by_watermark: whether the stream's watermark says so, else the clock.
    pattern, example: of one value.
    """

    first: str
    last: str
    end: str
    by_watermark: bool
    pattern: str
    example: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillDays:
    """Finds the days for the pages of one process. open: connects to the catalog. looks: the bounds of a look."""

    settings: Settings
    open: Callable[[Settings], Catalog] = open_catalog
    looks: BoundedLooks = field(default_factory=lambda: BoundedLooks(at="tables to backfill"))

    def find(self, ledger: Ledger, stream: LoadedStream) -> ChoosableDays:
        """Find them for a stream that declares a backfill."""
        newest = newest_batch(ledger, stream.name)
        return days_of(
            stream,
            first_row_at=self._first_row_at(stream),
            watermark=None if newest is None else newest.watermark,
            now=database_time(ledger),
        )

    def _first_row_at(self, stream: LoadedStream) -> datetime | None:
        target, column = backfilled_output(stream).target, backfill_of(stream).column
        try:
            return self.looks.look(lambda _: first_partition(load_table(self.open(self.settings), target), column))
        except LakehouseError:  # the form works without it, and the plan names what is wrong
            return None


def days_of(
    stream: LoadedStream, *, first_row_at: datetime | None, watermark: datetime | None, now: datetime
) -> ChoosableDays:
    """The days of a stream that declares a backfill. Pure."""
    declared = backfill_of(stream)
    length, margin = declared.interval, declared.margin or timedelta(0)
    end = last_closed(margin=margin, length=length, now=now if watermark is None else min(watermark, now))
    last = floor_time(end - timedelta(microseconds=1), length)
    return ChoosableDays(
        first="" if first_row_at is None else f"{floor_time(first_row_at, length):{_FORMS[length]}}",
        last=f"{last:{_FORMS[length]}}",
        end=f"{end:{_FORMS[length]}}",
        by_watermark=watermark is not None,
        pattern=_PATTERNS[length],
        example=_EXAMPLES[length],
    )


def first_partition(table: Table | None, column: str) -> datetime | None:
    """The beginning of the oldest partition of a column of times, from the list of manifests alone; none where the
    table is not partitioned by it, or has no row."""
    newest = None if table is None else table.current_snapshot()
    if table is None or newest is None:
        return None
    with catalog_refusals("read the list of manifests"):
        return min(_beginnings(table, newest.manifests(table.io), column), default=None)


def _beginnings(table: Table, manifests: Sequence[ManifestFile], column: str) -> Iterator[datetime]:
    schema, specs = table.schema(), table.specs()
    for manifest in manifests:
        parts = specs[manifest.partition_spec_id].fields
        for part, summary in zip(parts, manifest.partitions or (), strict=False):
            if schema.find_column_name(part.source_id) == column and summary.lower_bound is not None:
                kind = schema.find_type(part.source_id) if str(part.transform) == "identity" else str(part.transform)
                number = int.from_bytes(summary.lower_bound, "little", signed=True)
                if str(kind) in _MOMENTS:
                    yield _MOMENTS[str(kind)](number)


_MOMENTS: Mapping[str, Callable[[int], datetime]] = {
    "year": lambda count: _EPOCH.replace(year=1970 + count),
    "month": lambda count: _EPOCH.replace(year=1970 + count // 12, month=count % 12 + 1),
    "day": lambda count: _EPOCH + timedelta(days=count),
    "hour": lambda count: _EPOCH + timedelta(hours=count),
    "date": lambda count: _EPOCH + timedelta(days=count),
    "timestamp": lambda count: _EPOCH + timedelta(microseconds=count),
    "timestamptz": lambda count: _EPOCH + timedelta(microseconds=count),
}
"""The moment at which a partition begins: by its transform, or by the type of a column that is taken as it is.
Source: https://iceberg.apache.org/spec/#partition-transforms"""


BACKFILL_SUFFIX, CONTROL_DAG = "__backfill", "stream_control"
"""The DAGs that do the work beside `table_maintenance`; `sluice_airflow.dag_builders` makes them."""

MOST_FILES = 20_000
"""A page looks at a table of at most so many files: two seconds. The run makes the plan of a larger one itself."""

MOST_INTERVALS = 400
"""How many runs a page asks for at most: a year of days, two weeks of hours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AirflowRequest:
    """A request to Airflow's public API, sent as the person who asks. path: below `/api/v2/`."""

    path: str
    body: Mapping[str, Any] = field(hash=False)
    method: Literal["POST", "PATCH"] = "POST"


UNPAUSE = "unpause"
"""What the button does beside a paused DAG of the platform."""


def unpause_request(dag: str) -> AirflowRequest:
    """That a DAG is not paused any more."""
    return AirflowRequest(path=f"dags/{dag}", body={"is_paused": False}, method="PATCH")


def maintenance_request(table: str) -> AirflowRequest:
    """A run of the maintenance of one table."""
    return AirflowRequest(
        path=f"dags/{MAINTENANCE_DAG}/dagRuns", body={"logical_date": None, "conf": {"tables": [table]}}
    )


def backfill_request(declarations: Declarations, stream: LoadedStream, whole: Interval) -> AirflowRequest:
    """A backfill of an interval: one run for each part of it, also of parts that were backfilled before.

    Each run is held to the declarations of now: what is declared otherwise meanwhile, a person has not agreed to.

    Raises
    ------
    UsageError: when the stream declares no backfill, or the interval is not made of its parts, or of too many.
    """
    backfill, parts = backfill_of(stream), _parts(stream, whole)
    body = {
        "dag_id": f"{stream.name}{BACKFILL_SUFFIX}",
        "from_date": parts[0].start.isoformat(),
        "to_date": parts[-1].start.isoformat(),
        "max_active_runs": backfill.at_once,
        "reprocess_behavior": "completed",
        "dag_run_conf": {"agreed": declarations_digest(declarations, stream, whole)},
    }
    return AirflowRequest(path="backfills", body=body)


def plan_maintenance_run(
    ledger: Ledger, declarations: Declarations, settings: Settings, table: str
) -> OperationPlan[MaintenancePlan | None]:
    """What a maintenance run of a table would do now. Nothing is changed.

    Its digest names the table, what is declared for it, and the steps; not the snapshot: a live table has another one
    each second.

    Raises
    ------
    UsageError: when the table is not declared.
    LakehouseError, LedgerError: when the catalog or the ledger does not answer.
    """
    declaration = find_declaration(declarations, table)
    loaded = require_table(open_catalog(settings), table)
    files = _files_of(loaded)
    confirmed: dict[str, Any] = {
        "table": str(loaded.metadata.table_uuid),
        "declared": declaration.maintenance.model_dump(mode="json"),
    }
    asked = f"A run of the DAG {MAINTENANCE_DAG} does this for {table} alone, after runs that are on already."
    if files > MOST_FILES:
        unseen = f"It has {files:,} files, too many to look at for a page. The run looks at them and decides."
        steps = steps_of(unseen, asked)
        return OperationPlan(verb=OperationVerb.MAINTAIN, subject=table, seen=None, steps=steps, evidence=confirmed)
    now = database_time(ledger)
    plan = plan_table_maintenance(ledger, declarations, settings, declaration=declaration, table=loaded, now=now)
    confirmed["steps"] = [(decision.step, decision.action) for decision in plan.steps]
    return replace(maintenance_operation(plan), evidence=confirmed).followed_by(asked)


def plan_backfill_runs(
    ledger: Ledger, declarations: Declarations, settings: Settings, stream: LoadedStream, whole: Interval
) -> BackfillPlan:
    """What the backfill of an interval would do now. Nothing is changed.

    Its digest names what computes which rows and what comes back, not as of which batch: a live stream publishes one
    each second.

    Raises
    ------
    UsageError: as `backfill_request`.
    UnpublishableError: when it cannot be backfilled now, for a reason that no batch of the stream removes.
    LakehouseError, DeliveryError, LedgerError: when a table or the ledger cannot be read.
    """
    parts, catalog = _parts(stream, whole), open_catalog(settings)
    plan = plan_with_followers(catalog, ledger, declarations, stream, whole, settings=settings)
    if not plan.is_refused_for_now:
        plan.require_unrefused()
    backfill = backfill_of(stream)
    runs = "one run" if len(parts) == 1 else f"{len(parts)} runs, at most {backfill.at_once} at a time"
    asked = f"The DAG {stream.name}{BACKFILL_SUFFIX} does this in {runs}: one commit for each {backfill.interval}."
    computed = (Follower(stream=stream, interval=whole), *followers_of(declarations, stream, whole))
    return as_confirmed(plan, computed).followed_by(asked)


def as_confirmed(plan: BackfillPlan, computed: Iterable[Follower]) -> BackfillPlan:
    """The plan of a backfill with the digest of what a person agrees to. Pure.

    Parameters
    ----------
    computed: the stream and those that follow it, as they are declared now.
    """
    agreed = {
        "computed": {one.stream.name: (one.interval, one.stream.digest) for one in computed},
        "readers": [reader.meaning for reader in plan.seen.readers],
        "returning": {source.input: source.returning for source in plan.seen.sources if source.returning},
    }
    return replace(plan, evidence=agreed)


def record_backfill_request(ledger: Ledger, stream: str, whole: Interval, *, by: str) -> None:
    """Save that a person is about to ask for a backfill.

    Raises
    ------
    LedgerError: when the ledger cannot be reached; then nothing is asked.
    """
    explanation = f"The rows of {whole.spoken} are to be computed again."
    record_event(ledger, command_event(EventAction.BACKFILL, stream, by=by, explanation=explanation))


def record_maintenance_request(ledger: Ledger, table: str, *, by: str) -> None:
    """Save that a person is about to ask for the maintenance of a table.

    Raises
    ------
    LedgerError: when the ledger cannot be reached; then nothing is asked.
    """
    record_event(
        ledger,
        Event(
            subject=EventSubject.TABLE,
            name=table,
            actor=Actor.person(by),
            action=EventAction.MAINTAIN_TABLE,
            reason=REQUESTED,
        ),
    )


def _parts(stream: LoadedStream, whole: Interval) -> tuple[Interval, ...]:
    return divide(whole, backfill_of(stream).interval, at_most=MOST_INTERVALS)


def _files_of(table: Table) -> int:
    """The data files of the newest snapshot, as its summary counts them; a writer that does not count: none."""
    newest = table.current_snapshot()
    counted = None if newest is None or newest.summary is None else newest.summary.additional_properties
    return int((counted or {}).get("total-data-files", 0))


def can_stage(stream: LoadedStream) -> bool:
    """Whether batches of a stream wait in staging tables, so that one can be rejected."""
    return next(staged_outputs(stream.declaration), None) is not None


BATCH_WORDS: Mapping[OperationVerb, tuple[str, str]] = {
    OperationVerb.RELEASE_BATCH: (
        "Release batch",
        "Publish the held batch as it is, although it breaks a rule, and those behind it.",
    ),
    OperationVerb.SEPARATE_BATCH: (
        "Release batch without failing rows",
        "Publish the held batch without the rows that break its rules, which go to the quarantine.",
    ),
    OperationVerb.REJECT_BATCH: (
        "Reject batch",
        "Discard the batch that waits for good: none of its rows ever becomes visible.",
    ),
}
"""What a person may decide about a batch that waits: the label of the button, and what it does."""

_BATCH_ACTIONS = {
    OperationVerb.RELEASE_BATCH: (EventAction.RELEASE_BATCH, "released"),
    OperationVerb.SEPARATE_BATCH: (EventAction.RELEASE_BATCH, "released without the rows that break its rules"),
    OperationVerb.REJECT_BATCH: (EventAction.REJECT_BATCH, "rejected"),
}


def plan_batch_run(
    ledger: Ledger,
    settings: Settings,
    stream: LoadedStream,
    verb: OperationVerb,
    *,
    declarations: Declarations | None,
) -> OperationPlan[HeldBatch] | OperationPlan[Rejection]:
    """What a decision about the batch that waits would do now. Nothing is changed.

    Parameters
    ----------
    verb: one of `BATCH_WORDS`.
    declarations: say which columns are masked; unset when the reader may not see records of the stream.

    Raises
    ------
    SluiceError: as `plan_about_batch` does.
    """
    plan = plan_about_batch(ledger, stream, verb, open_tables=partial(open_catalog, settings))
    sentence = f"A run of the DAG {CONTROL_DAG} does this under your name, and only with the batch that you see here."
    if settings.approval_by_another:
        sentence += " It waits there for the approval of another person, for a day at most."
    held = plan.seen
    if declarations is None or not isinstance(held, HeldBatch):
        return plan.followed_by(sentence)
    return plan.followed_by(*broken_samples(declarations, stream.name, held), sentence)


def batch_request(stream: str, verb: OperationVerb, *, batch: int, digest: str) -> AirflowRequest:
    """A run that carries out what is decided about a batch, if it is still the one that was shown."""
    conf = {"stream": stream, "verb": str(verb), "dry_run": False, "batch": batch, "plan_digest": digest}
    return AirflowRequest(path=f"dags/{CONTROL_DAG}/dagRuns", body={"logical_date": None, "conf": conf})


def record_batch_request(ledger: Ledger, stream: str, verb: OperationVerb, *, batch: int, by: str) -> None:
    """Save that a person is about to ask for something about a batch.

    Raises
    ------
    LedgerError: when the ledger cannot be reached; then nothing is asked.
    """
    action, done = _BATCH_ACTIONS[verb]
    explanation = f"Batch {batch} is to be {done}; the DAG {CONTROL_DAG} is asked."
    record_event(ledger, command_event(action, stream, by=by, explanation=explanation))
