"""Which checkpoints nothing needs, by the ledger alone."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from sluice.ledger.generations import GenerationObservation
from sluice.ledger.refreshes import OPEN_STATES, RefreshObservation, RefreshState
from sluice.leftovers.closed_checkpoints import KnownCheckpoints, closed_checkpoints

ROOT = "file:///ck"
DAY = timedelta(days=1)
START = datetime(2026, 1, 1, tzinfo=UTC)
SHADOW = "refresh_7_1a2b3c4d_of_flights"


def generation(number: int, *, stream: str = "flights", checkpoint: str = "") -> GenerationObservation:
    """A generation that was opened on the day of its number."""
    place = checkpoint or f"{ROOT}/{stream}/{number}"
    return GenerationObservation(
        stream=stream, generation=number, checkpoint=place, opened_at=START + number * DAY, query_id="q"
    )


def refresh(state: RefreshState) -> RefreshObservation:
    """A refresh of generation 1, which opens generation 2, and can be taken back until day 20 when it was swapped."""
    was_swapped = state not in (RefreshState.BUILDING, RefreshState.SWAPPING, RefreshState.ABANDONED)
    return RefreshObservation(
        number=7,
        identity="1a2b3c4d",
        stream="flights",
        state=state,
        digest="d",
        leaves=1,
        opens=3 if state is RefreshState.TAKEN_BACK else 2,
        keeps=7 * DAY,
        keeps_until=START + 20 * DAY if was_swapped else None,
        rows=1,
        snapshot_id=1,
        asked_by="ann",
        began_at=START + DAY,
        ended_at=START + 5 * DAY if state is RefreshState.ABANDONED else None,
    )


RESET = KnownCheckpoints(
    generations=[generation(1), generation(2), generation(3)], refreshes=[], live=set(), begun={"flights"}
)


def found(known: KnownCheckpoints) -> dict[str, float]:
    """The day on which each folder was closed."""
    return {one.checkpoint.removeprefix(f"{ROOT}/"): (one.closed_at - START) / DAY for one in closed_checkpoints(known)}


def swapped(state: RefreshState, *more: GenerationObservation) -> KnownCheckpoints:
    """A stream whose generation 2 has the checkpoint of the shadow."""
    shadow = generation(1, stream=SHADOW)
    handed = generation(2, checkpoint=shadow.checkpoint)
    return KnownCheckpoints(
        generations=[generation(1), handed, *more, shadow], refreshes=[refresh(state)], live=set(), begun={"flights"}
    )


def test_a_generation_is_closed_when_the_next_one_was_opened_and_the_open_one_never() -> None:
    assert found(RESET) == {"flights/1": 2, "flights/2": 3}


def test_a_generation_stays_until_the_newest_one_has_begun() -> None:
    assert found(replace(RESET, begun=set())) == {}


def test_a_generation_in_which_a_run_lives_stays() -> None:
    assert found(replace(RESET, live={("flights", 1)})) == {"flights/2": 3}
    assert found(replace(RESET, live={("flights", 3)})) == {"flights/1": 2, "flights/2": 3}


@pytest.mark.parametrize("state", sorted(OPEN_STATES))
def test_nothing_is_closed_while_a_refresh_of_the_stream_is_open(state: RefreshState) -> None:
    shadow = generation(1, stream=SHADOW)
    known = replace(RESET, generations=[*RESET.generations, shadow], refreshes=[refresh(state)])
    assert found(known) == {}


def test_what_a_refresh_can_go_back_to_is_needed_until_then_and_its_shadow_is_that_of_the_stream() -> None:
    known = swapped(RefreshState.SWAPPED)
    assert found(known) == {"flights/1": 20}
    alone = replace(known, generations=[known.generations[-1]])
    assert found(alone) == {}, "the stream is to have it, and the ledger does not say so"
    assert found(swapped(RefreshState.SWAPPED, generation(3))) == {"flights/1": 20, f"{SHADOW}/1": 3}


def test_a_refresh_that_was_taken_back_leaves_its_shadow_and_gives_the_stream_its_old_folder_again() -> None:
    known = swapped(RefreshState.TAKEN_BACK, generation(3, checkpoint=f"{ROOT}/flights/1"))
    (closed,) = closed_checkpoints(known)
    assert (closed.checkpoint, closed.path, closed.of) == (f"{ROOT}/{SHADOW}/1", f"{SHADOW}/1", "generation 2")


def test_an_abandoned_refresh_leaves_the_checkpoint_of_its_shadow() -> None:
    abandoned = KnownCheckpoints(
        generations=[generation(1), generation(1, stream=SHADOW)],
        refreshes=[refresh(RefreshState.ABANDONED)],
        live=set(),
        begun=set(),
    )
    (closed,) = closed_checkpoints(abandoned)
    assert (closed.stream, closed.generation, closed.path) == ("flights", None, f"{SHADOW}/1")
    assert closed.closed_at == START + DAY
    assert found(replace(abandoned, live={(SHADOW, 1)})) == {}


def test_a_shadow_of_which_no_refresh_is_known_stays() -> None:
    known = KnownCheckpoints(generations=[generation(1, stream=SHADOW)], refreshes=[], live=set(), begun=set())
    assert found(known) == {}
