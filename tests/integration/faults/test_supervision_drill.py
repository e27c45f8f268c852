"""The supervision drill can fail: each of its judgements is shown what it must not let pass."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

from tests.faults.supervision.measuring import Publication, breaches
from tests.faults.supervision.report import FaultReport, Recovery
from tests.faults.supervision_drill import COMPONENTS, FAULTS, all_faults

from sluice.demo.report import STREAMS
from sluice.ledger.batches import PublicationKey

RIGHT = FaultReport(
    fault="SIGKILL of the driver",
    stream="bronze_flights",
    recovery=Recovery(detected_seconds=0.5, recovered_seconds=20.0, start_seconds=8.0, bound_seconds=32.0),
    drivers={"bronze_flights": 1, "silver_flights": 1},
    publishing=(),
    sent=1_000,
    lost=0,
    duplicated=0,
    problem="",
)


def _published(batch: int, *, token: int) -> Publication:
    return Publication(
        at_seconds=float(batch),
        token=token,
        run_id=f"run-{token}",
        key=PublicationKey(stream="s", generation=1, batch=batch),
    )


def test_a_history_of_one_publisher_after_the_other_is_in_order() -> None:
    assert breaches([_published(0, token=1), _published(1, token=1), _published(2, token=3)]) == []


def test_a_publication_of_an_older_run_is_a_breach() -> None:
    found = breaches([_published(0, token=1), _published(1, token=2), _published(2, token=1)])
    assert found == ["s:1:2 was published under token 1, after 2"]


def test_a_batch_that_comes_twice_is_a_breach() -> None:
    assert breaches([_published(4, token=1), _published(4, token=2)]) == ["s:1:4 was published after s:1:4"]


def test_a_report_is_right_only_when_nothing_at_all_is_wrong() -> None:
    assert RIGHT.is_right
    wrong = (
        replace(RIGHT, lost=1),
        replace(RIGHT, duplicated=1),
        replace(RIGHT, problem="it never came back"),
        replace(RIGHT, publishing=("s:1:2 was published under token 1, after 2",)),
        replace(RIGHT, drivers={"bronze_flights": 2}),
    )
    assert [report.is_right for report in wrong] == [False] * len(wrong)


def test_a_zombie_may_live_beside_the_driver_in_office_and_no_third_one() -> None:
    woken = Recovery(detected_seconds=1.0, recovered_seconds=2.0, zombies=1)
    assert replace(RIGHT, recovery=woken, drivers={"bronze_flights": 2}).is_right
    assert not replace(RIGHT, recovery=woken, drivers={"bronze_flights": 3}).is_right


def test_the_bound_is_judged_only_where_there_is_one() -> None:
    assert RIGHT.is_within_bound is True
    slow = Recovery(detected_seconds=0.5, recovered_seconds=33.0, start_seconds=8.0, bound_seconds=32.0)
    assert replace(RIGHT, recovery=slow).is_within_bound is False
    assert replace(RIGHT, recovery=Recovery(detected_seconds=None, recovered_seconds=3.0)).is_within_bound is None


def test_every_kind_of_fault_is_there_and_every_stream_is_killed_as_often() -> None:
    faults = all_faults(kills=21, at_once=3, lots=random.Random(7))  # noqa: S311  # no secret
    assert {fault.kind for fault in faults} == set(FAULTS)
    killed = Counter(stroke.stream for fault in faults if fault.kind == "kill" for stroke in fault.strokes)
    assert killed == dict.fromkeys(STREAMS, 7)
    together = [[stroke.stream for stroke in fault.strokes] for fault in faults if fault.kind == "kill"]
    assert all(len(set(streams)) == len(streams) for streams in together)
    names = {fault.name for fault in faults}
    assert {f"kill -9 of {component}" for component in COMPONENTS} <= names


def test_so_many_drivers_are_killed_as_was_asked_for() -> None:
    faults = all_faults(kills=5, at_once=3, lots=random.Random(7))  # noqa: S311  # no secret
    assert [len(fault.strokes) for fault in faults if fault.kind == "kill"] == [3, 2]
