"""Progress as a table: what the looks at the sources told, and what is made of it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fixtures.streams import continuous_stream

from sluice.ledger.batches import BatchObservation, PublicationKey
from sluice.ledger.progress_samples import ProgressSample
from sluice.ledger.run_values import DesiredState, RunObservation, RunState
from sluice.supervision.progress_decision import (
    SAMPLED_WITHIN,
    SHORTEST_WINDOW,
    TRIGGER_DELAY,
    UNANSWERED_FOR,
    WINDOW_WITHOUT_BATCHES,
    ProgressState,
    judge_progress,
    oldest_unread,
    stall_window,
)

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
MINUTE, SECOND, HOUR = timedelta(minutes=1), timedelta(seconds=1), timedelta(hours=1)
LATE_BY_ROWS = {"max_lag": {"rows": 100, "action": "defer_maintenance"}}
LATE_BY_TIME = {"max_lag": {"duration": "3 minutes"}}
RESTARTED_WHEN_LATE = {"max_lag": {"rows": 100, "action": "restart"}}
RESTARTED = {"on_stall": "restart"}


def a_run(*, age: timedelta = HOUR) -> RunObservation:
    """A run that was started so long ago."""
    return RunObservation(
        token=1,
        run_id="run-1",
        stream="flights",
        generation=1,
        mode="continuous",
        state=RunState.RUNNING,
        desired_state=DesiredState.RUNNING,
        launched_at=NOW - age,
        launched_by="a test",
        declaration_digest="d",
        heartbeat_at=NOW,
    )


def a_batch(number: int, *, ago: timedelta, seconds: float = 1.0, run_id: str = "run-1") -> BatchObservation:
    """A batch that was recorded so long ago."""
    return BatchObservation(
        key=PublicationKey(stream="flights", generation=1, batch=number),
        run_id=run_id,
        started_at=NOW - ago,
        duration_ms=int(seconds * 1000),
        input_rows=10,
        published_rows={},
        recorded_at=NOW - ago,
    )


def look(
    minutes_ago: float,
    unread: int | None,
    *,
    batch: int | None = 5,
    read: int = 1000,
    generation: int = 1,
    undone: int | None = None,
    is_failure: bool | None = None,
) -> ProgressSample:
    """A look at the sources so many minutes ago."""
    return ProgressSample(
        stream="flights",
        observed_at=NOW - minutes_ago * MINUTE,
        generation=generation,
        batch=batch,
        read_rows=read,
        unread_rows=unread,
        problem="" if unread is not None else "Kafka does not answer",
        undone=undone,
        is_failure=(unread is None and undone is None) if is_failure is None else is_failure,
    )


def waiting(minutes: int, *, unread: int = 20, batch: int | None = 5) -> tuple[ProgressSample, ...]:
    """Looks that see rows waiting for so long, one a minute."""
    return tuple(look(ago, unread, batch=batch) for ago in range(minutes + 1))


@dataclass(frozen=True, kw_only=True)
class Case:
    """One row of the table."""

    name: str
    state: ProgressState
    samples: tuple[ProgressSample, ...] = ()
    batches: tuple[BatchObservation, ...] = (a_batch(5, ago=20 * MINUTE),)
    declared: dict[str, Any] = field(default_factory=dict)
    age: timedelta = HOUR
    ended_for_stall: bool = False
    ended_for_lag: bool = False
    restarts: bool = False
    defers: bool = False


State = ProgressState
TABLE = (
    Case(name="nobody looked at a young run", state=State.UNKNOWN, age=SAMPLED_WITHIN),
    Case(name="nobody ever looked", state=State.UNOBSERVED, age=SAMPLED_WITHIN + MINUTE),
    Case(
        name="a source refuses", state=State.UNOBSERVED, samples=(replace(look(0, None), is_refused=True), look(1, 5))
    ),
    Case(
        name="looked long ago",
        state=State.UNOBSERVED,
        samples=(look(SAMPLED_WITHIN / MINUTE + 1, 9),),
        declared=RESTARTED,
    ),
    Case(
        name="looked long ago, before it was started",
        state=State.UNKNOWN,
        samples=(look(SAMPLED_WITHIN / MINUTE + 1, 9),),
        age=MINUTE,
    ),
    Case(
        name="the source did not answer once, of a young run",
        state=State.UNKNOWN,
        samples=(look(0, None),),
        age=MINUTE,
        declared=RESTARTED,
    ),
    Case(
        name="the source did not answer twice: a topic was deleted, a permission is missing",
        state=State.UNOBSERVED,
        samples=(look(0, None), look(1, None), *waiting(60)[2:]),
        declared=RESTARTED,
    ),
    Case(
        name="the source cannot be observed",
        state=State.UNKNOWN,
        samples=tuple(look(ago, None, is_failure=False) for ago in range(60)),
        declared=RESTARTED,
    ),
    Case(
        name="the newest look had no answer, and the run is hung all the same",
        state=State.STALLED,
        samples=(look(0, None), *waiting(60)[1:]),
        declared=RESTARTED,
        restarts=True,
    ),
    Case(
        name="one look in four has no answer, and the run is hung for four hours",
        state=State.STALLED,
        samples=tuple(look(ago, None if ago % 4 == 3 else 20) for ago in range(240)),
        batches=(a_batch(5, ago=5 * HOUR),),
        age=6 * HOUR,
    ),
    Case(
        name="files wait for longer than the window",
        state=State.STALLED,
        samples=tuple(look(ago, None, undone=3) for ago in range(7)),
    ),
    Case(name="no file waits", state=State.IDLE, samples=(look(0, None, undone=0),)),
    Case(
        name="one source is hung beside one that cannot be observed",
        state=State.STALLED,
        samples=tuple(look(ago, None, undone=20, is_failure=False) for ago in range(7)),
    ),
    Case(
        name="late again after a restart that did not help",
        state=State.LATE,
        samples=tuple(look(ago, 101, batch=50 - ago) for ago in range(30)),
        declared=RESTARTED_WHEN_LATE,
        ended_for_lag=True,
    ),
    Case(
        name="late again after it was within its limits",
        state=State.LATE,
        samples=(look(0, 101, batch=9), look(1, 99, batch=8), look(2, 101, batch=7)),
        declared=RESTARTED_WHEN_LATE,
        ended_for_lag=True,
        restarts=True,
    ),
    Case(
        name="nothing unread all night",
        state=State.IDLE,
        samples=(look(0, 0),),
        batches=(a_batch(5, ago=9 * HOUR),),
    ),
    Case(
        name="rows after a quiet night", state=State.PROGRESSING, samples=(look(0, 20), look(1, 0)), declared=RESTARTED
    ),
    Case(
        name="rows that came since all was read, though rows had waited before",
        state=State.PROGRESSING,
        samples=(look(0, 20), look(1, 0), *waiting(60)[2:]),
        declared=RESTARTED,
    ),
    Case(name="rows wait for a while", state=State.PROGRESSING, samples=waiting(4)),
    Case(name="rows wait for longer than the window", state=State.STALLED, samples=waiting(6)),
    Case(
        name="and it is to be restarted",
        state=State.STALLED,
        samples=waiting(6),
        declared=RESTARTED,
        restarts=True,
    ),
    Case(
        name="restarted for a stall and brought a batch since",
        state=State.STALLED,
        samples=waiting(6),
        declared=RESTARTED,
        ended_for_stall=True,
        restarts=True,
    ),
    Case(
        name="restarted for a stall and brought no batch since",
        state=State.STALLED,
        samples=waiting(16),
        batches=(a_batch(5, ago=50 * MINUTE, run_id="run-0"),),
        declared=RESTARTED,
        ended_for_stall=True,
    ),
    Case(
        name="a slow stream has a longer window",
        state=State.PROGRESSING,
        samples=waiting(15),
        batches=(a_batch(5, ago=20 * MINUTE, seconds=120),),
    ),
    Case(
        name="a declared window counts", state=State.STALLED, samples=waiting(2), declared={"stall_after": "1 minute"}
    ),
    Case(
        name="a longer declared window, too",
        state=State.PROGRESSING,
        samples=waiting(15),
        declared={"stall_after": "1 hour"},
    ),
    Case(name="a new batch restarts the wait", state=State.PROGRESSING, samples=(look(0, 20, batch=6), *waiting(60))),
    Case(
        name="a batch came after the newest look",
        state=State.PROGRESSING,
        samples=waiting(16),
        batches=(a_batch(6, ago=SECOND),),
    ),
    Case(
        name="just started, what waited before is not its fault",
        state=State.STARTING,
        samples=waiting(60),
        batches=(a_batch(5, ago=HOUR, run_id="run-0"),),
        age=2 * MINUTE,
        declared=RESTARTED,
    ),
    Case(name="never brought a batch, young", state=State.STARTING, samples=waiting(14, batch=None), batches=()),
    Case(name="never brought a batch", state=State.STALLED, samples=waiting(16, batch=None), batches=()),
    Case(name="too many rows", state=State.LATE, samples=(look(0, 101),), declared=LATE_BY_ROWS, defers=True),
    Case(name="as many rows as are allowed", state=State.PROGRESSING, samples=(look(0, 100),), declared=LATE_BY_ROWS),
    Case(
        name="rows that are too old, though batches come",
        state=State.LATE,
        samples=tuple(look(ago, 500, batch=50 - ago, read=1000 - 100 * ago) for ago in range(9)),
        declared=LATE_BY_TIME,
    ),
    Case(
        name="as many rows, and young ones",
        state=State.PROGRESSING,
        samples=tuple(look(ago, 500, batch=50 - ago, read=9000 - 1000 * ago) for ago in range(9)),
        declared=LATE_BY_TIME,
    ),
    Case(
        name="late and to be restarted",
        state=State.LATE,
        samples=(look(0, 101),),
        declared=RESTARTED_WHEN_LATE,
        restarts=True,
    ),
    Case(
        name="late, and young: it is catching up",
        state=State.LATE,
        samples=(look(0, 101),),
        declared=RESTARTED_WHEN_LATE,
        age=9 * MINUTE,
    ),
)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_the_table(row: Case) -> None:
    judged = judge_progress(
        continuous_stream(supervision=row.declared).declaration,
        a_run(age=row.age),
        batches=row.batches,
        samples=row.samples,
        ended_for_stall=row.ended_for_stall,
        ended_for_lag=row.ended_for_lag,
        now=NOW,
    )
    assert (judged.state, judged.restarts, judged.defers_maintenance) == (row.state, row.restarts, row.defers)
    assert judged.is_healthy is (row.state not in (State.LATE, State.STALLED, State.UNOBSERVED))
    assert judged.explanation.endswith(".")
    is_in_vain = row.state is State.STALLED and row.declared.get("on_stall") == "restart" and not row.restarts
    assert ("A restart has not helped before" in judged.explanation) is is_in_vain


def test_every_state_has_a_row() -> None:
    assert {row.state for row in TABLE} == set(ProgressState)


@pytest.mark.parametrize(
    ("newest", "amount"),
    [(look(0, 1234), "1,234 rows are unread"), (look(0, None, undone=3), "3 rows, files or shards are unread")],
)
def test_what_is_unread_is_told_as_what_it_is_known_to_be(newest: ProgressSample, amount: str) -> None:
    judged = judge_progress(continuous_stream().declaration, a_run(), batches=(), samples=(newest,), now=NOW)
    assert judged.explanation.startswith(amount)


@pytest.mark.parametrize(
    ("silent", "state"), [(UNANSWERED_FOR, State.UNKNOWN), (UNANSWERED_FOR + SECOND, State.UNOBSERVED)]
)
def test_a_source_may_be_silent_for_a_while_and_says_no_reason(silent: timedelta, state: ProgressState) -> None:
    mute = replace(look(0, None), problem="")
    judged = judge_progress(continuous_stream().declaration, a_run(age=silent), batches=(), samples=(mute,), now=NOW)
    assert judged.state is state
    assert judged.explanation.endswith(": its sources did not answer.")


def test_nothing_is_restarted_on_what_is_not_known() -> None:
    unsure = (State.UNKNOWN, State.UNOBSERVED, State.IDLE, State.STARTING)
    assert not any(row.restarts for row in TABLE if row.state in unsure)


@pytest.mark.parametrize(
    ("declared", "waits"),
    [
        ({"outputs": {"rows": {"iceberg": {"table": "bronze.flights", "publish_every": "20 minutes"}}}}, 20 * MINUTE),
        (
            {
                "inputs": {
                    "records": {
                        "stream": {
                            "kafka": {"connection": "c", "topics": ["t"], "min_offsets_per_batch": 1000},
                        }
                    }
                }
            },
            TRIGGER_DELAY,
        ),
    ],
    ids=["batches are recorded in groups", "a batch waits for offsets"],
)
@pytest.mark.parametrize("batches", [(), (a_batch(5, ago=10 * MINUTE),)], ids=["first", "later"])
def test_a_batch_that_waits_as_declared_is_not_stalled(
    declared: dict[str, Any], waits: timedelta, batches: tuple[BatchObservation, ...]
) -> None:
    plain = stall_window(continuous_stream().declaration, batches)
    assert stall_window(continuous_stream(**declared).declaration, batches) == plain + waits


def test_a_stream_that_reports_no_batches_is_not_judged_by_them() -> None:
    wanted = continuous_stream(
        trigger={"continuous_processing": "1 second"},
        inputs={"records": {"stream": {"kafka": {"connection": "c", "topics": ["t"]}}}},
        outputs={"sent": {"kafka": {"connection": "c", "topic": "u"}}},
        supervision=RESTARTED,
    )
    judged = judge_progress(wanted.declaration, a_run(), batches=(), samples=waiting(600, batch=None), now=NOW)
    assert judged.state is ProgressState.UNKNOWN
    assert not judged.restarts


@given(st.lists(st.integers(min_value=1, max_value=10**8), max_size=20))
def test_a_window_is_never_shorter_than_the_streams_own_step(durations_ms: list[int]) -> None:
    batches = [a_batch(number, ago=MINUTE, seconds=each / 1000) for number, each in enumerate(durations_ms)]
    window = stall_window(continuous_stream().declaration, batches)
    assert window >= (SHORTEST_WINDOW if batches else WINDOW_WITHOUT_BATCHES)
    assert all(window > 2 * timedelta(milliseconds=each) for each in durations_ms)


def test_the_age_of_the_oldest_unread_row() -> None:
    looks = [look(0, 30, read=100), look(2, 50, read=60), look(4, 40, read=60), look(9, 20, read=60)]
    assert oldest_unread(looks, now=NOW) == 2 * MINUTE, "it came after there were 100, which are all read"
    assert oldest_unread([look(0, 0)], now=NOW) == timedelta(0)
    assert oldest_unread([look(0, 5, read=10), look(7, 9, read=5)], now=NOW) == 7 * MINUTE, "at least"
    assert oldest_unread([look(0, 5, read=0, generation=2), look(7, 9, read=5)], now=NOW) == timedelta(0)
    assert oldest_unread([look(0, None), look(7, 9, read=5), look(9, 9, read=5)], now=NOW) is None
