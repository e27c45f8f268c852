"""Arbitrary state in Python: value, list and map state, timers by event time, and state that expires."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.fixtures.workshop import Workshop

from sluice.errors import CheckpointError
from sluice.ledger.generations import find_generation

NOON = datetime(2013, 1, 1, 12, tzinfo=UTC)
CONTINUOUS: dict[str, Any] = {"mode": "continuous", "trigger": {"processing_time": "500 milliseconds"}}

VISITS = """
    from pyspark.sql import Row
    from pyspark.sql.streaming import StatefulProcessor

    PAUSE_MS = 10_000

    class Visits(StatefulProcessor):
        # A visit of a user ends when nothing came for ten seconds; then it is reported, its pages by time.

        def init(self, handle):
            self.handle = handle
            self.last = handle.getValueState("last", "at_ms BIGINT")
            self.pages = handle.getListState("pages", "at_ms BIGINT, page STRING")
            self.views = handle.getMapState("views", "page STRING", "views BIGINT")

        def handleInputRows(self, key, rows, timerValues):
            newest = self.last.get()[0] if self.last.exists() else None
            for row in rows:
                at_ms = int(row.at.timestamp() * 1000)
                self.pages.appendValue((at_ms, row.page))
                views = self.views.getValue((row.page,))[0] if self.views.containsKey((row.page,)) else 0
                self.views.updateValue((row.page,), (views + 1,))
                newest = at_ms if newest is None else max(newest, at_ms)
            for timer in list(self.handle.listTimers()):
                self.handle.deleteTimer(timer)
            self.last.update((newest,))
            self.handle.registerTimer(newest + PAUSE_MS)
            return iter([])

        def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
            pages = sorted(self.pages.get())
            views = dict((page[0], count[0]) for page, count in self.views.iterator())
            top = max(sorted(views), key=views.get)
            for state in (self.last, self.pages, self.views):
                state.clear()
            yield Row(user=key[0], views=len(pages), path=">".join(page for _, page in pages), top=top)

        def close(self):
            pass

    def transform(clicks):
        return clicks.groupBy("user").transformWithState(
            Visits(), "user STRING, views BIGINT, path STRING, top STRING", "Append", "EventTime"
        )
"""


def clicks(*rows: tuple[str, float, str]) -> list[dict[str, Any]]:
    """Rows of users, seconds after noon, and pages."""
    return [{"user": user, "at": NOON + timedelta(seconds=seconds), "page": page} for user, seconds, page in rows]


def declare(workshop: Workshop, name: str, python: str, columns: dict[str, str], **how: Any) -> None:
    """A stream from clicks to what a processor makes of them."""
    source = workshop.declare_table("clicks", {"user": "string", "at": "timestamptz", "page": "string"})
    target = workshop.declare_table("reported", columns)
    workshop.declare_stream(
        name,
        python=python,
        inputs={
            "clicks": {"stream": {"iceberg": {"table": source}}, "watermark": {"column": "at", "delay": "2 seconds"}}
        },
        outputs={"reported": {"iceberg": {"table": target}}},
        **how,
    )


@pytest.mark.full  # every run: values that are kept over restarts
def test_state_of_every_kind_and_timers_report_visits_over_restarts(workshop: Workshop) -> None:
    name = f"s{workshop.namespace}"
    declare(
        workshop, name, VISITS, {"user": "string", "views": "long", "path": "string", "top": "string"}, **CONTINUOUS
    )
    workshop.append("clicks", clicks(("ann", 0, "home"), ("bob", 3, "home"), ("ann", 4, "shop"), ("ann", 2, "news")))
    workshop.run(name, stop_after_batches=2)
    assert workshop.rows("reported") == []

    workshop.append("clicks", clicks(("ann", 9, "shop"), ("bob", 30, "help")))
    workshop.run(name, stop_after_batches=2)
    workshop.append("clicks", clicks(("eve", 60, "home"), ("bob", 1, "late")))
    last = workshop.run(name, stop_after_batches=2).batches

    assert workshop.rows("reported") == [
        {"user": "ann", "views": 4, "path": "home>news>shop>shop", "top": "shop"},
        {"user": "bob", "views": 2, "path": "home>help", "top": "help"},
    ]
    assert sum(batch.late_rows for batch in last) == 1


EXPIRING = """
    from pyspark.sql import Row
    from pyspark.sql.streaming import StatefulProcessor

    class Seen(StatefulProcessor):
        # Reports whether a user was seen before, as long as that is remembered.

        def init(self, handle):
            self.seen = handle.getValueState("seen", "times BIGINT", 1)

        def handleInputRows(self, key, rows, timerValues):
            known = self.seen.exists()
            times = (self.seen.get()[0] if known else 0) + sum(1 for _ in rows)
            self.seen.update((times,))
            yield Row(user=key[0], times=times)

        def close(self):
            pass

    def transform(clicks):
        return clicks.groupBy("user").transformWithState(
            Seen(), "user STRING, times BIGINT", "Append", "ProcessingTime"
        )
"""


@pytest.mark.full
def test_state_expires_after_its_time_to_live(workshop: Workshop) -> None:
    """A millisecond later, that is: the second run finds nothing of the first."""
    name = f"s{workshop.namespace}"
    declare(workshop, name, EXPIRING, {"user": "string", "times": "long"})
    for page in ("home", "shop"):
        workshop.append("clicks", clicks(("ann", 0, page)))
        workshop.run(name)

    assert workshop.rows("reported") == [{"user": "ann", "times": 1}, {"user": "ann", "times": 1}]


def test_the_keys_of_a_processor_stay(workshop: Workshop) -> None:
    """The other column has the same type: Spark would take the counts of users for those of pages."""
    name, entry = f"s{workshop.namespace}", "keys of the state processors"
    lasting = EXPIRING.replace('"times BIGINT", 1)', '"times BIGINT")')
    columns = {"user": "string", "times": "long"}
    declare(workshop, name, lasting, columns)
    workshop.append("clicks", clicks(("ann", 0, "home")))
    workshop.run(name)

    workshop.append("clicks", clicks(("ann", 0, "shop")))
    workshop.run(name)

    bound = find_generation(workshop.ledger, name)
    assert bound is not None
    assert bound.fingerprint[entry] == "user string"
    declare(workshop, name, lasting.replace('groupBy("user")', 'groupBy("page")'), columns)
    with pytest.raises(CheckpointError, match=f"{entry} was `user string` and is now `page string`"):
        workshop.run(name)
    assert workshop.rows("reported") == [{"user": "ann", "times": 1}, {"user": "ann", "times": 2}]
