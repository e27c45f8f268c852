"""What a driver may do under its lease, by its own clock alone."""

from __future__ import annotations

import pytest

from sluice.errors import LeaseLostError
from sluice.ledger.run_leases import LEASE_SECONDS
from sluice.supervision.held_lease import OUTAGE_GRACE_SECONDS, PUBLISH_DEADLINE_SECONDS, HeldLease, seconds_since_boot


class _Clock:
    seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> _Clock:
    """A clock that the test moves."""
    return _Clock()


@pytest.fixture
def lease(clock: _Clock) -> HeldLease:
    """A lease that nobody has renewed yet."""
    return HeldLease(stream="flights", token=7, clock=clock)


def let_pass(lease: HeldLease, clock: _Clock, seconds: float) -> bool:
    """Let time pass in which the driver asks each half a second whether it is to stop. Returns the last answer."""
    for _ in range(int(seconds * 2)):
        clock.seconds += 0.5
        is_to_stop = lease.is_to_stop
    return is_to_stop if seconds else lease.is_to_stop


def test_the_driver_stops_before_it_may_not_publish_and_that_before_the_lease_is_given_away() -> None:
    assert OUTAGE_GRACE_SECONDS < PUBLISH_DEADLINE_SECONDS < LEASE_SECONDS


def test_nothing_is_published_before_the_ledger_confirmed_the_lease(lease: HeldLease) -> None:
    with pytest.raises(LeaseLostError, match="flights, token 7: the ledger has not confirmed"):
        lease.require()
    lease.renewed(asked_at_seconds=lease.now_seconds())
    lease.require()


@pytest.mark.parametrize(
    ("since_seconds", "is_to_stop", "may_publish"),
    [
        (0.0, False, True),
        (OUTAGE_GRACE_SECONDS - 1, False, True),
        (OUTAGE_GRACE_SECONDS, True, True),
        (PUBLISH_DEADLINE_SECONDS - 1, True, True),
        (PUBLISH_DEADLINE_SECONDS, True, False),
    ],
)
def test_an_absent_ledger_is_borne_then_stops_the_run_then_its_publications(
    lease: HeldLease, clock: _Clock, *, since_seconds: float, is_to_stop: bool, may_publish: bool
) -> None:
    lease.renewed(asked_at_seconds=clock())
    assert let_pass(lease, clock, since_seconds) is is_to_stop
    if may_publish:
        lease.require()
    else:
        with pytest.raises(LeaseLostError, match="renewed 230 s ago"):
            lease.require()


def test_a_renewal_counts_from_when_it_was_asked_for(lease: HeldLease, clock: _Clock) -> None:
    asked_at_seconds = lease.now_seconds()
    clock.seconds += PUBLISH_DEADLINE_SECONDS
    lease.renewed(asked_at_seconds=asked_at_seconds)
    with pytest.raises(LeaseLostError):
        lease.require()
    lease.renewed(asked_at_seconds=lease.now_seconds())
    lease.renewed(asked_at_seconds=asked_at_seconds)  # an answer that was overtaken
    lease.require()


def test_a_lease_that_was_taken_away_stays_lost(lease: HeldLease, clock: _Clock) -> None:
    lease.renewed(asked_at_seconds=clock())
    lease.lost("another run has the lease")
    lease.renewed(asked_at_seconds=clock())
    assert lease.is_to_stop
    with pytest.raises(LeaseLostError, match="another run has the lease"):
        lease.require()


def test_the_first_reason_of_a_loss_stays(lease: HeldLease) -> None:
    lease.lost("another run has the lease")
    lease.lost("its run has ended")
    with pytest.raises(LeaseLostError, match="another run has the lease"):
        lease.require()


def test_a_driver_that_never_reached_the_ledger_stops_as_well(lease: HeldLease, clock: _Clock) -> None:
    assert let_pass(lease, clock, OUTAGE_GRACE_SECONDS)


def test_the_clock_of_a_driver_rises() -> None:
    first = seconds_since_boot()
    assert seconds_since_boot() >= first


def test_a_host_that_was_asleep_asks_the_ledger_before_its_drivers_give_up(lease: HeldLease, clock: _Clock) -> None:
    """The clock runs on while the host sleeps or the process is frozen, and the watch looks before the heartbeat."""
    lease.renewed(asked_at_seconds=clock())
    clock.seconds += OUTAGE_GRACE_SECONDS + 10
    assert not lease.is_to_stop
    assert not let_pass(lease, clock, 2.0)
    lease.renewed(asked_at_seconds=clock())
    assert not let_pass(lease, clock, OUTAGE_GRACE_SECONDS - 1)
    assert let_pass(lease, clock, 1.0)


def test_a_host_that_was_asleep_for_long_publishes_nothing_at_first(lease: HeldLease, clock: _Clock) -> None:
    lease.renewed(asked_at_seconds=clock())
    clock.seconds += PUBLISH_DEADLINE_SECONDS
    assert not lease.is_to_stop
    with pytest.raises(LeaseLostError):
        lease.require()
