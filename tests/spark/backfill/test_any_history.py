"""Whatever happens to a stream, its table holds what DuckDB makes of the rows that it has read.

A history is drawn at random: increments and continuous runs, crashes, batches that a person rejects, lost days and
their backfills in random intervals and order, with a stream that follows, corrections that move rows to other intervals
or take their times away, refreshes, topics that lose their first records or become compacted, a ledger that is replaced
by an older copy, or by an empty one. After each step the table is compared. `TZ=America/St_Johns` before the command
gives the host another time zone, `SLUICE_TEST_SEEDS=500:600` chooses the histories.
"""

# ruff: noqa: S608  # every query is made of our own names

from __future__ import annotations

import random
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import SecretStr
from sqlalchemy.engine import URL
from tests.fixtures.backfills import backfill, search_gaps
from tests.fixtures.drill import seeded
from tests.fixtures.ledger_copies import ReplaceableLedger, replaceable_ledger
from tests.fixtures.refreshes import refresh
from tests.fixtures.streams_of_tables import dying_at
from tests.fixtures.workshop import Workshop
from tests.spark.backfill.test_any_backfill import (
    KINDS,
    LAST_DAY,
    PARTS,
    Case,
    Kind,
    corrections_of,
    date_of,
    of_whole_days,
)
from tests.spark.backfill.test_backfilled_topics import compact, make_topic, remove_first, send

from sluice.errors import UnpublishableError, VerificationError
from sluice.ledger.batches import BatchObservation, newest_batch
from sluice.ledger.connection import open_ledger
from sluice.publication.batch_rejection import plan_rejection, reject
from sluice.publication.crash_points import CrashPoint
from sluice_spark.run.stop_request import StopReason, StopRequest

pytestmark = pytest.mark.usefixtures("engine")

_PATIENCE_SECONDS = 300.0
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
        rows = records.alias("records").selectExpr("id", "upper(word) word", "{time} at")
        return {"rows": rows, "quarantine": rejected}
"""
KINDS_OF_HISTORIES = (
    *(replace(kind, follows=False) for kind in KINDS),
    replace(KINDS[0], name="topic", follows=False),
    replace(KINDS[0], name="followed"),
)


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
        return self.case.kind.name in ("rows", "topic", "followed")

    def begin(self) -> None:
        """Declare the stream, and keep a copy of the ledger that knows nothing of it."""
        self._reopen()
        self.declare()
        self.keep_copy()

    def declare(self, **how: Any) -> None:
        """Declare the stream, continuous or not."""
        kafka = {"connection": "flights_kafka", "topics": [self.topic], "value": _VALUE}
        if self.topic:
            python = _FROM_A_TOPIC.replace("{time}", self.case.kind.time)
            self.case.declare(records={"stream": {"kafka": kafka}}, python=python, quarantine=True, **how)
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
        if self.case.kind.follows:
            self.shop.run_supervised(f"g{self.shop.namespace}")
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
        steps += [self.shorten] if self.topic else []
        steps += [self.correct] * 2 if self.is_whole and corrections_of(self.case.kind) else []
        self.chance.choice(steps)()

    def damage(self) -> None:
        """Lose days, and backfill them."""
        self.note_watermark()
        days = self.case.damage()
        self.lost |= days
        self.steps.append(f"lose {sorted(days)}")
        self.backfill_days(self.lost)

    def backfill_some(self) -> None:
        """Backfill days that may be right, open or lost."""
        self.note_watermark()
        self.backfill_days(self.chance.sample(range(1, self.case.days + 1), 2))

    def correct(self) -> None:
        """The transformation is corrected, and what it has published is computed again. Rows that move to intervals
        that do not have them yet need all of them at once, and rows that lose or get a time need a refresh."""
        self.case.kind = self.chance.choice(corrections_of(self.case.kind))
        self.steps.append(f"correct: {self.case.kind.by_duckdb}")
        self.declare()
        self.note_watermark()
        days = range(1, LAST_DAY + 1)
        self.lost |= set(days)
        is_made_of_one = self.case.kind.opens == "false"
        if not self.backfill_days(days, is_corrected=True) and is_made_of_one and not self.backfill(1, LAST_DAY, True):
            self.refresh()

    def backfill_days(self, days: Iterable[int], *, is_corrected: bool = False) -> bool:
        """Backfill days, some of them together, in random order; whether all were replaced."""
        intervals = self._intervals(days)
        results = [self.backfill(*one, is_corrected) for one in self.chance.sample(intervals, len(intervals))]
        return all(results)

    def _intervals(self, days: Iterable[int]) -> list[tuple[int, int]]:
        """The first and last days of intervals: days that touch are one interval, or divided at one or two days, and
        mostly at the first that is open."""
        made, parted = list[tuple[int, int]](), self.chance.sample(range(1, LAST_DAY + 1), 2)
        if self.chance.random() < 0.8:
            parted.append(min(self.case.open_days(), default=1))
        for day in sorted(days):
            if made and made[-1][1] == day - 1 and day not in parted:
                made[-1] = (made[-1][0], day)
            else:
                made.append((day, day))
        return made

    def backfill(self, first: int, last: int, is_corrected: bool = False) -> bool:
        """Backfill an interval of whole days; whether it was replaced. It is refused when a day of it is open, when the
        topic lacks records, and when a row that comes back has no time."""
        self.steps.append(f"backfill {first} to {last}")
        days, refusal = set(range(first, last + 1)), ""
        if not self.is_whole:
            refusal = r"is compacted|the oldest record"
        elif days & self.case.open_days():
            refusal = r"windows and joins of the interval|had no watermark"
        elif any(time is None for time in self._times_of_returning().values()):
            refusal = r"rows of the result have no at and are not in"
        elif is_corrected:
            refusal = r"lie in other intervals now|do not lie any more|rows of the result have no at|with a null at"
        try:
            backfill(self.shop, self.case.stream, start=date_of(first), end=date_of(last + 1), allows_fewer=True)
        except (UnpublishableError, VerificationError) as error:
            if not refusal or not re.search(refusal, error.message):
                raise AssertionError(f"{refusal or 'no refusal'} was expected after {self.steps}") from error
            return False
        assert is_corrected or not refusal, f"{refusal}: not refused after {self.steps}"
        self.lost -= days
        back = {number for number, time in self._times_of_returning().items() if time.day in days}
        self.hidden = [one for one in self.hidden if one["id"] not in back]
        return True

    def _times_of_returning(self) -> Mapping[int, Any]:
        """The times of the rejected rows that come back with backfills: a record of a topic does not, as long as the
        ledger knows of its rejection."""
        ids = {one["id"] for one in self.hidden} - set(self.known_rejected if self.topic else ())
        times: dict[int, Any] = dict(self.case.asked(f"SELECT id, {self.case.kind.time} FROM records")) if ids else {}
        return {number: times[number] for number in ids}

    def refresh(self) -> None:
        """Build the table again; what was rejected comes back."""
        self.steps.append("refresh")
        try:
            refresh(self.shop, self.case.stream, allows_fewer=True)
        except UnpublishableError:
            assert not self.is_whole, self.steps
            return
        assert self.is_whole, self.steps
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
        if compact.__name__ in self.steps:  # Kafka removes no single record from a topic that is compacted
            how = compact
        self.steps.append(how.__name__)
        how(self.shop, self.topic)
        self.is_whole = False

    def end(self) -> None:
        """Backfill what is lost; with a stream that follows, all: then its table has the rows that have a time."""
        if not self.case.kind.follows:
            self.backfill_days(self.lost)
            return
        if self.hidden:
            self.refresh()
        self.backfill_days(range(1, LAST_DAY + 1))
        gold, target = (Counter(row for row in self.case.held(one).elements() if row[2]) for one in ("gold", "target"))
        assert gold == target, self.steps

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
            if case.kind.is_once:  # which of the repeated rows remains is open when they lie in one batch
                ids, others = (Counter(row[0] for row in rows.elements()) for rows in (held, expected))
                assert ids == others, history
                assert not set(held) - set(case.asked(f"SELECT id, word, {case.kind.time} FROM records")), history
            else:
                place = list(case.kind.columns).index("at")
                both = (of_whole_days(rows, self.lost, place) for rows in (held, expected))
                assert next(both) == next(both), history
        finally:
            case.records, case.clicked = every, clicks


@pytest.fixture
def ledger(postgres_url: URL) -> Iterator[ReplaceableLedger]:
    with replaceable_ledger(postgres_url.render_as_string(hide_password=False)) as made:
        yield made


def history_of(workshop: Workshop, ledger: ReplaceableLedger, own: ExitStack, seed: int) -> History:
    """A history before its first step: the kind of the stream goes round."""
    kind: Kind = KINDS_OF_HISTORIES[seed % len(KINDS_OF_HISTORIES)]
    case = Case(workshop=workshop, kind=kind, chance=random.Random(seed))  # noqa: S311  # no secret
    topic = make_topic(workshop) if kind.name == "topic" else ""
    return History(case=case, ledger=ledger, own=own, topic=topic)


@pytest.mark.parametrize("seed", seeded(170, [3], full=[0, 1, 2, 4, 5, 6, 7, 11, 13]))
def test_a_table_holds_what_its_stream_has_read_whatever_happens(
    seed: int, workshop: Workshop, ledger: ReplaceableLedger
) -> None:
    with ExitStack() as own:
        history = history_of(workshop, ledger, own, seed)
        history.begin()
        for part in range(history.chance.randint(PARTS // 2, PARTS)):
            if part:
                history.restore()
            history.read_next()
            history.compare()
            history.happens()
            history.compare()
        if history.is_whole:
            history.end()
            history.compare()
            if not history.hidden:
                gaps = search_gaps(history.shop, history.case.stream).gaps
                assert not [gap for gap in gaps if gap.interval.start.day not in history.lost], history.steps
