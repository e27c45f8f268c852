"""Whatever happens to a stream, its table holds what DuckDB makes of the rows that it has read.

A history is drawn at random: increments and continuous runs, crashes, batches that a person rejects, lost days and
their backfills, refreshes, topics that lose their first records or become compacted, a ledger that is replaced by an
older copy, or by an empty one. After each step the table is compared. `TZ=America/St_Johns` before the command gives
the host another time zone.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import SecretStr
from sqlalchemy.engine import URL
from tests.fixtures.backfills import search_gaps
from tests.fixtures.drill import sampled
from tests.fixtures.ledger_copies import ReplaceableLedger, replaceable_ledger
from tests.fixtures.refreshes import refresh
from tests.fixtures.streams_of_tables import dying_at
from tests.fixtures.workshop import Workshop
from tests.spark.backfill.test_any_backfill import KINDS, PARTS, Case, Kind, Row, of_whole_days
from tests.spark.backfill.test_backfilled_topics import compact, make_topic, remove_first, send

from sluice.errors import UnpublishableError
from sluice.ledger.batches import BatchObservation, newest_batch
from sluice.ledger.connection import open_ledger
from sluice.publication.batch_rejection import plan_rejection, reject
from sluice.publication.crash_points import CrashPoint
from sluice_spark.run.stop_request import StopReason, StopRequest

_PATIENCE_SECONDS = 120.0
_CRASHES = (CrashPoint.BATCH_BEGUN, CrashPoint.STAGED, CrashPoint.CHECKED, CrashPoint.PUBLISHED)
_FIRST, _LAST = datetime(1970, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)
_CONTINUOUS = {"mode": "continuous", "trigger": {"processing_time": "100 milliseconds"}}
_VALUE = {
    "format": "json",
    "columns": [
        {"name": name, "type": kind}
        for name, kind in (("id", "long"), ("word", "string"), ("at", "timestamptz"), ("part", "long"))
    ],
}
_FROM_A_TOPIC = """
    def transform(records):
        none = "CAST(NULL AS STRING)"
        rejected = records.where("false").selectExpr("'' reason", f"{none} position", f"{none} payload")
        return {"rows": records.selectExpr("id", "upper(word) word", "at"), "quarantine": rejected}
"""
KINDS_OF_HISTORIES = (*(replace(kind, follows=False) for kind in KINDS), replace(KINDS[0], name="topic", follows=False))


@dataclass(slots=True, kw_only=True)
class History:
    """A stream, what has happened to it, and what its table has to hold.

    read: how many parts it has read. hidden: the rows that a person has rejected and that have not come back.
    lost: the days that miss rows, because they were open. copies: of the ledger, each with the rows that it knows as
    rejected. is_whole: whether its topic has all records.
    """

    case: Case
    ledger: ReplaceableLedger
    own: ExitStack
    topic: str = ""
    read: int = 0
    hidden: list[Mapping[str, Any]] = field(default_factory=list)
    known_rejected: list[int] = field(default_factory=list)
    lost: set[int] = field(default_factory=set)
    copies: list[tuple[str, list[int]]] = field(default_factory=list)
    is_whole: bool = True
    steps: list[str] = field(default_factory=list)

    @property
    def shop(self) -> Workshop:
        """Where the stream is, with the ledger of today."""
        return self.case.workshop

    @property
    def chance(self) -> random.Random:
        """What draws the history."""
        return self.case.chance

    @property
    def keeps_no_state(self) -> bool:
        """Whether a batch that is rejected is about its own rows alone."""
        return self.case.kind.name in ("rows", "topic")

    def begin(self) -> None:
        """Declare the stream, and keep a copy of the ledger that knows nothing of it."""
        self._reopen()
        self.declare()
        self.keep_copy()

    def declare(self, **how: Any) -> None:
        """Declare the stream, continuous or not."""
        kafka = {"connection": "flights_kafka", "topics": [self.topic], "value": _VALUE}
        if self.topic:
            self.case.declare(records={"stream": {"kafka": kafka}}, python=_FROM_A_TOPIC, quarantine=True, **how)
        else:
            self.case.declare(**how)

    def _reopen(self) -> None:
        opened = self.own.enter_context(open_ledger(self.ledger.url))
        settings = self.shop.settings.model_copy(update={"ledger_url": SecretStr(self.ledger.url)})
        self.case.workshop = replace(self.shop, ledger=opened, settings=settings)

    # What rows arrive by

    def read_next(self) -> None:
        """The next part arrives, and the stream reads it in some way."""
        every = (*self.case.records, *(self.case.clicked if self.case.kind.clicks else ()))
        rows = [one for one in every if one["part"] == self.read]
        if self.topic:
            send(self.shop, self.topic, [one for one in self.case.records if one["part"] == self.read])
        else:
            self.case.append(self.read)
        ways: list[Callable[[], None]] = [self.increment, lambda: self.run_continuously(len(rows)), self.crash]
        if self.keeps_no_state:
            ways.append(self.reject)
        self.chance.choice(ways)()
        self.read += 1

    def increment(self) -> None:
        """Read what is there."""
        self.steps.append("increment")
        self.shop.run_supervised(self.case.stream)

    def run_continuously(self, rows: int) -> None:
        """Run the stream without end, until it has read some rows."""
        self.steps.append("continuous")
        self.declare(**_CONTINUOUS)
        stop, left = StopRequest(), [rows]

        def has_read(batch: BatchObservation) -> bool:
            left[0] -= batch.input_rows
            return left[0] <= 0

        late = threading.Timer(_PATIENCE_SECONDS, stop.make, [StopReason.STOPPED])
        late.start()
        try:
            self.shop.run(self.case.stream, stop=stop, stop_when=has_read, is_recorded=True)
        finally:
            late.cancel()
            late.join()
        assert left[0] <= 0, f"{left[0]} rows were not read within {_PATIENCE_SECONDS} s"
        self.declare()

    def crash(self) -> None:
        """Die somewhere in the batch; the next increment completes it."""
        point = self.chance.choice(_CRASHES)
        self.steps.append(f"crash at {point}")
        with pytest.raises(OSError, match="dies here"):
            self.shop.run(self.case.stream, is_recorded=True, reached=dying_at(point))
        self.shop.run_supervised(self.case.stream)

    def reject(self) -> None:
        """A person rejects the batch of this part."""
        self.steps.append("reject")
        with pytest.raises(OSError, match="dies here"):
            self.shop.run(self.case.stream, is_recorded=True, reached=dying_at(CrashPoint.STAGED))
        declaration = self.shop.stream(self.case.stream).declaration
        plan = plan_rejection(self.shop.catalog, self.shop.ledger, declaration)
        reject(self.shop.catalog, self.shop.ledger, declaration, number=plan.seen.key.batch, requested_by="a test")
        rows = [one for one in self.case.records if one["part"] == self.read]
        self.hidden.extend(rows)
        self.known_rejected.extend(one["id"] for one in rows)
        self.shop.run_supervised(self.case.stream)

    # What happens besides

    def happens(self) -> None:
        """Something happens that brings no rows."""
        steps: list[Callable[[], None]] = [self.damage, self.backfill_some, self.refresh, self.keep_copy]
        if self.topic:
            steps.append(self.shorten)
        self.chance.choice(steps)()

    def damage(self) -> None:
        """Lose days, and backfill them."""
        self.note_watermark()
        days = self.case.damage()
        self.steps.append(f"lose {sorted(days)}")
        self.lost |= days
        self.backfill_days(sorted(self.lost))

    def backfill_some(self) -> None:
        """Backfill two days that may be right, open or lost."""
        self.note_watermark()
        self.backfill_days(self.chance.sample(range(1, self.case.days + 1), 2))

    def backfill_days(self, days: Sequence[int]) -> None:
        """Backfill days in random order; the open ones are refused, and all are once the topic lacks records."""
        self.steps.append(f"backfill {list(days)}")
        if not self.is_whole:
            for day in days:
                with pytest.raises(UnpublishableError, match=r"is compacted|the oldest record"):
                    self.case.backfill_all([day], is_open=())
            return
        is_open = self.case.open_days()
        self.case.backfill_all(days, is_open=is_open)
        for day in set(days) - is_open:
            self.lost.discard(day)
            self.hidden = [one for one in self.hidden if not self._returns(one, day)]

    def _returns(self, row: Mapping[str, Any], day: int) -> bool:
        """Whether a rejected row comes back with the backfill of a day: one of a topic does not, as long as the ledger
        knows of its rejection."""
        stays_out = bool(self.topic) and row["id"] in self.known_rejected
        return row["at"] is not None and row["at"].day == day and not stays_out

    def refresh(self) -> None:
        """Build the table again; what was rejected comes back."""
        self.steps.append("refresh")
        if not self.is_whole:
            with pytest.raises(UnpublishableError, match="cannot be read from its beginning"):
                refresh(self.shop, self.case.stream, allows_fewer=True)
            return
        refresh(self.shop, self.case.stream, allows_fewer=True)
        self.hidden, self.known_rejected, self.copies = [], [], []  # an older ledger does not know the generation
        self.lost = set()

    def keep_copy(self) -> None:
        """Copy the ledger, as a backup does."""
        self.steps.append("copy the ledger")
        self.copies.append((self.ledger.copy(), list(self.known_rejected)))

    def restore(self) -> None:
        """Put an older copy of the ledger in its place; the first one is empty."""
        if self.copies and self.chance.random() < 0.4:
            self.steps.append("restore the ledger")
            number = self.chance.randrange(len(self.copies))
            copy, self.known_rejected = self.copies[number]
            del self.copies[number:]
            self.ledger.fail_over(copy)
            self.own.close()
            self._reopen()

    def shorten(self) -> None:
        """The topic loses what was read first, or may lose anything."""
        how = self.chance.choice((remove_first, compact))
        self.steps.append(how.__name__)
        how(self.shop, self.topic)
        self.is_whole = False

    # What the table holds

    def note_watermark(self) -> None:
        """That of the newest batch. Before the second one there is none, and everything is open."""
        newest = newest_batch(self.shop.ledger, self.case.stream)
        without = _FIRST if "$w" in self.case.kind.by_duckdb else _LAST
        self.case.watermark = (newest.watermark if newest is not None else None) or without

    def compare(self) -> None:
        """Compare the table with what DuckDB makes of the rows that were read and not rejected."""
        self.note_watermark()
        case, every = self.case, self.case.records
        clicks = self.case.clicked
        hidden = [one["id"] for one in self.hidden]
        case.records = [one for one in every if one["part"] < self.read and one["id"] not in hidden]
        case.clicked = [one for one in clicks if one["part"] < self.read]
        try:
            held, expected = case.held(), case.expected()
            history = f"{case.kind.name} after {self.steps}"
            if not case.kind.sql:  # which of the repeated rows remains is open when they lie in one batch
                assert _ids(held) == _ids(expected), history
                assert not set(held) - {(one["id"], one["word"], one["at"]) for one in case.records}, history
            else:
                place = list(case.kind.columns).index("at")
                both = (of_whole_days(rows, self.lost, place) for rows in (held, expected))
                assert next(both) == next(both), history
        finally:
            case.records, case.clicked = every, clicks


def _ids(rows: Counter[Row]) -> Counter[Any]:
    return Counter(row[0] for row in rows.elements())


@pytest.fixture
def ledger(postgres_url: URL) -> Iterator[ReplaceableLedger]:
    """A ledger that a copy can replace."""
    with replaceable_ledger(postgres_url.render_as_string(hide_password=False)) as made:
        yield made


def history_of(workshop: Workshop, ledger: ReplaceableLedger, own: ExitStack, seed: int) -> History:
    """A history before its first step: the kind of the stream goes round."""
    kind: Kind = KINDS_OF_HISTORIES[seed % len(KINDS_OF_HISTORIES)]
    case = Case(workshop=workshop, kind=kind, chance=random.Random(seed))  # noqa: S311  # no secret
    topic = make_topic(workshop) if kind.name == "topic" else ""
    made = History(case=case, ledger=ledger, own=own, topic=topic)
    made.begin()
    return made


SEEDS = range(500)


@pytest.mark.parametrize("seed", sampled(SEEDS, [13], full=[0, 1, 2, 3, 4, 5, 6, 7, 11]))
def test_a_table_holds_what_its_stream_has_read_whatever_happens(
    seed: int, workshop: Workshop, ledger: ReplaceableLedger
) -> None:
    with ExitStack() as own:
        history = history_of(workshop, ledger, own, seed)
        for part in range(PARTS):
            if part:
                history.restore()
            history.read_next()
            history.compare()
            history.happens()
            history.compare()
        if history.is_whole:
            history.backfill_days(sorted(history.lost))
            history.compare()
            if not history.hidden:
                gaps = search_gaps(history.shop, history.case.stream).gaps
                assert not [gap for gap in gaps if gap.interval.start.day not in history.lost], history.steps
