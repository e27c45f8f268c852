"""What can be asked of Spark: a frozen value for each kind of work item, and its form in the queue.

A value contains names and times and no secret: everybody who may read the ledger can read it. A template of Airflow in
it is rendered before it is asked for.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import ClassVar

from sluice.backfill.intervals import parse_interval
from sluice.errors import LedgerError
from sluice.ledger.work_values import WorkItem, WorkKind

YES, NO = "yes", "no"
"""How a request says whether something is so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkRequest:
    """What is asked for. Its first field names the stream or the table."""

    kind: ClassVar[WorkKind]
    priority: ClassVar[int] = 0

    @property
    def subject(self) -> str:
        """The stream or the table."""
        return str(getattr(self, fields(self)[0].name))

    def payload(self) -> dict[str, str]:
        """What the kind needs, as it is stored in the queue."""
        return {name: str(value) for name, value in asdict(self).items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Increment(WorkRequest):
    """Run an incremental stream over everything that is there now. New data come before all that repairs or tidies."""

    kind: ClassVar[WorkKind] = WorkKind.INCREMENT
    priority: ClassVar[int] = 10
    stream: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaceInterval(WorkRequest):
    """Compute an interval of a stream again and replace it, beside the live stream, and the intervals that follow it.

    start, end: times in ISO 8601; without an offset they are UTC. The end is not part of the interval.
    allow_fewer: `yes` to publish also where fewer rows come than go.
    allow_repeated: `yes` to publish also rows that the target may hold elsewhere already.
    agreed: the `declarations_digest` that a person agreed to; empty when no person was asked.
    """

    kind: ClassVar[WorkKind] = WorkKind.INTERVAL
    priority: ClassVar[int] = 5
    stream: str
    start: str
    end: str
    allow_fewer: str = NO
    allow_repeated: str = NO
    agreed: str = ""

    def payload(self) -> dict[str, str]:
        """The stream, and the interval in one form, so that two who ask for the same one ask for equal values.

        Raises
        ------
        UsageError: when it is no interval.
        """
        interval = parse_interval(self.start, self.end)
        start, end = interval.start.isoformat(), interval.end.isoformat()
        return {**asdict(self), "start": start, "end": end}


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshTable(WorkRequest):
    """Build the content of a stream's table again, and replace it in one commit.

    keep_days: for how many days the earlier content can be taken back.
    allow_fewer: `yes` to publish also when fewer rows come than go.
    """

    kind: ClassVar[WorkKind] = WorkKind.REFRESH
    priority: ClassVar[int] = 5
    stream: str
    keep_days: str
    allow_fewer: str = NO


@dataclass(frozen=True, slots=True, kw_only=True)
class FindGaps(WorkRequest):
    """Find the intervals of a stream's table that do not hold what its sources give. Nothing is changed.

    start, end: times in ISO 8601; empty for the oldest row, and for the newest closed interval.
    fails: `yes` to end as failed when there are some.
    """

    kind: ClassVar[WorkKind] = WorkKind.FIND_GAPS
    priority: ClassVar[int] = 3
    stream: str
    start: str
    end: str
    fails: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintainTable(WorkRequest):
    """Compact a table, rewrite its manifests and expire its snapshots, as declared and as far as it is due."""

    kind: ClassVar[WorkKind] = WorkKind.MAINTAIN_TABLE
    table: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckTable(WorkRequest):
    """Check the newest committed snapshot of a table against its declared expectations."""

    kind: ClassVar[WorkKind] = WorkKind.CHECK_TABLE
    table: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRecords(WorkRequest):
    """Publish rejected records of a stream through today's code, beside the live stream, each once.

    kinds, positions, batches: which ones, as lists in JSON; empty lists for all. until: rejected up to this time in ISO
    8601; empty for all. only_tries: `yes` to compute and to publish nothing. planned: the digest that a person agreed
    to; empty when no person was asked. allows_repeated: `yes` to publish also rows that the target holds already.
    """

    kind: ClassVar[WorkKind] = WorkKind.REPLAY
    priority: ClassVar[int] = 5
    stream: str
    kinds: str = "[]"
    positions: str = "[]"
    batches: str = "[]"
    until: str = ""
    only_tries: str = NO
    planned: str = ""
    allows_repeated: str = NO


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearseCopy(WorkRequest):
    """Put the newest copy of a stream's state into a folder of its own, and run a batch on it for its state alone."""

    kind: ClassVar[WorkKind] = WorkKind.REHEARSE
    stream: str


REQUESTS: dict[WorkKind, type[WorkRequest]] = {
    request.kind: request
    for request in (
        Increment,
        ReplaceInterval,
        RefreshTable,
        FindGaps,
        MaintainTable,
        CheckTable,
        ReplayRecords,
        RehearseCopy,
    )
}
"""The request of each kind."""


def request_of(item: WorkItem) -> WorkRequest:
    """What an item asks for.

    Raises
    ------
    LedgerError: when its payload is not one of its kind: another version of this program has asked for it.
    """
    request = REQUESTS[item.kind]
    if set(item.payload) != {field.name for field in fields(request)}:
        raise LedgerError(
            f"Work item {item.item} asks for {item.kind} with {', '.join(sorted(item.payload)) or 'nothing'}; this "
            f"version takes {', '.join(field.name for field in fields(request))}.",
            next_step="Clear the task of Airflow that has asked for it: it asks again.",
        )
    return request(**item.payload)
