"""A copy several batches behind the tables: the next run takes its state through them, and publishes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from sqlalchemy import text
from tests.faults.ways_out.cells import AFTER, BEFORE, planned, repaired, undamaged, witnesses
from tests.faults.ways_out.damages import killed_afterwards
from tests.faults.ways_out.kinds import Kind, Subject
from tests.fixtures.drill import first_of, sampled
from tests.fixtures.workshop import Workshop

from sluice.errors import CheckpointError
from sluice.ledger.runs import newest_run
from sluice.publication.crash_points import CrashPoint
from sluice_spark.run.stop_request import StopReason, StopRequest

PLACES = [
    (point, occurrence)
    for occurrence in (1, 2)
    for point in (CrashPoint.PLANNED, CrashPoint.FILE_CHANGED, CrashPoint.COMMITTED)
    if (point, occurrence) != (CrashPoint.COMMITTED, 2)  # the second one may be that of the batch that follows
]


class _KilledError(Exception):
    """Stands for the death of the process."""


def dying(point: CrashPoint, occurrence: int) -> Callable[[CrashPoint], None]:
    """What dies at a place, the n-th time it is passed."""
    passed: list[CrashPoint] = []

    def die(here: CrashPoint) -> None:
        passed.append(here)
        if here is point and passed.count(point) == occurrence:
            raise _KilledError

    return die


def restored(workshop: Workshop) -> Subject:
    """A stream with a window whose checkpoint was lost long after its last stop, and put back from the copy of that."""
    subject = Subject(workshop=workshop, kind=Kind.W)
    subject.declare()
    subject.feed(BEFORE[:2])
    subject.run()
    with killed_afterwards(subject):
        subject.feed(BEFORE[2:])
        subject.run()
    plan = planned(subject)
    replays = plan.evidence["replays"]
    assert len(replays) > 1, list(plan.sentences())
    assert f"The next start runs the batches {replays[0]} to {replays[-1]} again" in " ".join(plan.sentences())
    repaired(subject, plan)
    assert witnesses(subject) == ()
    return subject


@pytest.mark.parametrize("place", sampled(PLACES, [PLACES[2]], full=PLACES[:2]))
def test_a_run_that_is_killed_within_it_is_continued_by_the_next_one(
    workshop: Workshop, place: tuple[CrashPoint, int]
) -> None:
    subject = restored(workshop)
    before = subject.content()
    with pytest.raises(_KilledError):
        subject.run(reached=dying(*place))
    assert witnesses(subject) == ()
    assert subject.content() == before

    ended = workshop.run(subject.stream)

    assert subject.content() == before, "what is run again for its state is not published"
    assert not list(subject.checkpoint.glob("replay/[0-9]*"))
    assert len(ended.batches) == 1, "only the newest one is a batch of the run"
    run = newest_run(workshop.ledger, subject.stream)
    assert run is not None
    assert run.delivers_since > run.launched_at, "what it has run again counts as progress"
    subject.feed(AFTER)
    subject.run()
    assert Counter(subject.content()) == Counter(undamaged(workshop, Kind.W))


@pytest.mark.full  # every run: one that is killed
def test_a_run_that_is_asked_to_stop_leaves_the_rest_to_the_next_one(workshop: Workshop) -> None:
    subject, stop = restored(workshop), StopRequest()
    before = subject.content()
    stop.make(StopReason.STOPPED)

    assert workshop.run(subject.stream, stop=stop).reason is StopReason.STOPPED

    assert list(subject.checkpoint.glob("replay/[0-9]*"))
    subject.run()
    assert subject.content() == before


@pytest.mark.parametrize("is_killed_first", first_of(False, True))
def test_a_state_that_comes_out_otherwise_is_refused_at_every_start(workshop: Workshop, is_killed_first: bool) -> None:
    """Also where the run before was killed between the commit of the batch and its comparison."""
    subject = restored(workshop)
    before, least = subject.content(), min(int(file.name) for file in subject.checkpoint.glob("replay/[0-9]*"))
    with workshop.ledger.transaction() as connection:
        connection.execute(
            text("UPDATE batches SET state_rows = state_rows + 1 WHERE stream = :stream AND batch = :least"),
            {"stream": subject.stream, "least": least},
        )
    if is_killed_first:
        with pytest.raises(_KilledError):
            subject.run(reached=dying(CrashPoint.COMMITTED, 1))
        assert (subject.checkpoint / f"commits/{least}").exists()
    for _ in range(2):
        with pytest.raises(CheckpointError, match="was run again for its state, which has"):
            subject.run()

    assert subject.content() == before
