"""What others do between a publisher's check and its commit: the window that only the catalog's comparison closes."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import pyarrow as pa
import pytest
from tests.fixtures.publication import Workbench

from sluice.errors import DivergedError, RolledBackError, StaleTokenError, StarvedError
from sluice.publication.checked_commit import RacePolicy
from sluice.publication.crash_points import CrashPoint, Reached
from sluice.publication.mark_moves import open_generation, reject_batch, take_over

STOPPED_SECONDS = 2.0
"""How long a driver is stopped here; the drill stops one for more than a minute."""


def once_at_check(action: Callable[[], object]) -> Reached:
    """Do something when the first check has admitted a batch and its commit is not sent."""
    done: list[object] = []

    def reached(point: CrashPoint) -> None:
        if point is CrashPoint.CHECKED and not done:
            done.append(None)
            action()

    return reached


def test_another_writer_is_no_hindrance(bench: Workbench) -> None:
    batch = bench.stage(0, [1])
    published = bench.publish(batch, reached=once_at_check(lambda: bench.write_as_another(100)))
    assert published.attempts == 2
    assert bench.ids() == [1, 100]


def test_a_compaction_is_no_hindrance(bench: Workbench) -> None:
    for number in range(3):
        bench.publish(bench.stage(number, [number]))
    published = bench.publish(bench.stage(3, [3]), reached=once_at_check(bench.compact))
    assert published.attempts == 2
    assert bench.ids() == [0, 1, 2, 3]
    assert len(bench.target().inspect.files()) == 2


def test_an_expiry_is_no_hindrance(bench: Workbench) -> None:
    for number in range(3):
        bench.publish(bench.stage(number, [number]))
    bench.publish(bench.stage(3, [3]), reached=once_at_check(bench.expire_all_but_the_newest))
    assert bench.ids() == [0, 1, 2, 3]


def test_a_commit_on_another_branch_is_no_hindrance(bench: Workbench) -> None:
    bench.publish(bench.stage(0, [0]))

    def write_into_a_branch() -> None:
        table = bench.target()
        head = table.metadata.current_snapshot_id
        assert head is not None
        table.manage_snapshots().create_branch(head, "audit").commit()
        rows = pa.Table.from_pylist([{"kind": "a", "id": 666}], table.schema().as_arrow())
        bench.target().append(rows, branch="audit")

    published = bench.publish(bench.stage(1, [1]), reached=once_at_check(write_into_a_branch))
    assert published.attempts == 2
    assert bench.ids() == [0, 1]


def test_a_second_publisher_of_the_same_batch_makes_the_first_one_stop(bench: Workbench) -> None:
    batch, other = bench.stage(0, [1]), bench.as_run(1)
    published = bench.publish(batch, reached=once_at_check(lambda: other.publish(batch)))
    assert published.was_published_before
    assert bench.ids() == [1]


def test_a_publisher_that_a_newer_run_took_the_stream_from_stops(bench: Workbench) -> None:
    batch, new = bench.stage(0, [1]), bench.as_run(2)
    with pytest.raises(StaleTokenError):
        bench.publish(batch, reached=once_at_check(lambda: take_over(new.catalog, new.output, token=2)))
    assert bench.ids() == []
    new.publish(batch)
    assert bench.ids() == [1]


def test_a_publisher_whose_batch_was_published_by_a_newer_run_stops(bench: Workbench) -> None:
    batch, new = bench.stage(0, [1]), bench.as_run(2)

    def go_on_without_the_first() -> None:
        take_over(new.catalog, new.output, token=2)
        new.publish(batch)
        new.publish(new.stage(1, [2]))

    with pytest.raises(StaleTokenError):
        bench.publish(batch, reached=once_at_check(go_on_without_the_first))
    assert bench.ids() == [1, 2]
    assert bench.mark().batch == 1


def test_a_publisher_stops_when_a_new_generation_opened(bench: Workbench) -> None:
    bench.publish(bench.stage(0, [1]))
    late, new = bench.stage(1, [2]), bench.as_run(2).in_generation(2)

    def rewind() -> None:
        reject_batch(new.catalog, new.output, late, token=2)
        open_generation(new.catalog, new.output, generation=2, token=2)

    with pytest.raises(StaleTokenError):
        bench.publish(late, reached=once_at_check(rewind))
    new.publish(new.stage(0, [7]))
    assert bench.ids() == [1, 7]


def test_a_publisher_with_the_newest_token_and_an_old_generation_is_an_incident(bench: Workbench) -> None:
    batch, same_token = bench.stage(0, [1]), bench.as_run(1).in_generation(2)

    def reopen() -> None:
        reject_batch(same_token.catalog, same_token.output, batch, token=1)
        open_generation(same_token.catalog, same_token.output, generation=2, token=1)

    with pytest.raises(DivergedError, match="older generation"):
        bench.publish(batch, reached=once_at_check(reopen))
    assert bench.ids() == []


def test_a_rollback_in_the_window_is_not_undone(bench: Workbench) -> None:
    first = bench.publish(bench.stage(0, [1]))
    bench.publish(bench.stage(1, [2]))
    late = bench.stage(2, [3])

    def roll_back() -> None:
        assert first.snapshot_id is not None
        bench.target().manage_snapshots().rollback_to_snapshot(first.snapshot_id).commit()

    with pytest.raises(RolledBackError):
        bench.publish(late, reached=once_at_check(roll_back))
    assert bench.ids() == [1]


def test_a_steady_rival_starves_a_publisher_that_may_not_wait(bench: Workbench) -> None:
    batch = bench.stage(0, [1])

    def rival(point: CrashPoint) -> None:
        bench.write_as_another(100)

    with pytest.raises(StarvedError, match="won 3 races"):
        bench.publish(batch, reached=rival, policy=RacePolicy(attempts=3))
    assert bench.ids() == [100, 100, 100]
    bench.publish(batch)
    assert bench.ids() == [1, 100, 100, 100]


def test_lost_races_leave_no_files_behind(bench: Workbench) -> None:
    batch = bench.stage(0, [1])
    before = bench.metadata_files()
    bench.publish(batch, reached=once_at_check(lambda: bench.write_as_another(100)))
    # Of each of the two commits that landed: a manifest and a list of manifests.
    assert len(bench.metadata_files() - before) == 4


def test_a_driver_that_was_stopped_between_check_and_commit_publishes_nothing(bench: Workbench) -> None:
    batch, new = bench.stage(0, [1]), bench.as_run(2)
    with bench.process(0, signal_at_check=signal.SIGSTOP) as zombie:
        zombie.await_stop()
        take_over(new.catalog, new.output, token=2)
        new.publish(batch)
        new.publish(new.stage(1, [2]))
        time.sleep(STOPPED_SECONDS)  # how long it stands still is what is tested
        zombie.go_on()
        exit_code, answer = zombie.result()
    assert exit_code == 0
    assert answer["outcome"] == "StaleTokenError"
    assert bench.ids() == [1, 2]


@pytest.mark.full
def test_a_driver_that_was_stopped_and_that_was_not_replaced_goes_on(bench: Workbench) -> None:
    bench.stage(0, [1])
    with bench.process(0, signal_at_check=signal.SIGSTOP) as zombie:
        zombie.await_stop()
        bench.write_as_another(100)
        zombie.go_on()
        _, answer = zombie.result()
    assert answer == {"outcome": "published"}
    assert bench.ids() == [1, 100]
