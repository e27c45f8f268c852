"""What a real refresh leaves behind: nothing while it can be taken back, and the stream goes on once it was removed.

Every test run has what a refresh leaves without Spark (`test_closed_checkpoints.py`), and the removal of real folders
(`test_leftovers.py`).
"""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.fixtures.refreshes import (
    ROWS,
    at_step,
    refresh,
    right,
    run_wrong_copy,
    shadow_tables,
    take_it_back,
    wrong,
)
from tests.fixtures.workshop import Workshop

from sluice.ledger.connection import database_time
from sluice.ledger.events import Actor
from sluice.leftovers.observe_leftovers import Leftovers
from sluice.leftovers.remove_leftovers import clean
from sluice.publication.crash_points import CrashPoint
from sluice.refresh.undo_refresh import abandon

NEW, NEWER = {"id": 100, "word": "new"}, {"id": 101, "word": "newer"}


def left(workshop: Workshop, stream: str, *, days: float) -> Leftovers:
    """What is left of a stream so many days later."""
    now = database_time(workshop.ledger) + timedelta(days=days)
    return Leftovers(
        catalog=workshop.catalog, ledger=workshop.ledger, settings=workshop.settings, now=now, stream=stream
    )


def folders(found: Leftovers) -> list[tuple[str, str]]:
    """Of what each is, and the end of its place."""
    return [(one.of, one.place.removeprefix(found.settings.checkpoints)) for one in found.found]


@pytest.mark.full
def test_what_a_refresh_replaced_goes_after_its_way_back_and_never_what_the_stream_has(workshop: Workshop) -> None:
    name = run_wrong_copy(workshop)
    swapped = refresh(workshop, name)
    assert folders(left(workshop, name, days=6)) == [], "it can be taken back"
    assert folders(left(workshop, name, days=8)) == [("generation 1", f"/{name}/1")]

    take_it_back(workshop, name)

    assert folders(left(workshop, name, days=8)) == [("generation 2", f"/{swapped.shadow}/1")]
    (removed,) = clean(left(workshop, name, days=40), actor=Actor.person("ann"))
    assert (removed.of, removed.files or 0) > ("generation 2", 3)
    assert folders(left(workshop, name, days=40)) == []
    workshop.append("source", [NEW])
    workshop.run_supervised(name)
    assert workshop.rows("target") == [*wrong(ROWS), *right([NEW])], "generation 3 has the checkpoint of generation 1"


@pytest.mark.full
def test_what_an_abandoned_refresh_leaves_is_the_checkpoint_of_its_shadow(workshop: Workshop) -> None:
    name = run_wrong_copy(workshop)

    def fail() -> None:
        assert folders(left(workshop, name, days=40)) == [], "it is being built"
        raise OSError("it fails here")

    with pytest.raises(OSError, match="fails here"):
        refresh(workshop, name, reached=at_step(CrashPoint.BUILT, fail))
    given_up = abandon(workshop.catalog, workshop.ledger, workshop.stream(name), asked_by="a test")
    assert shadow_tables(workshop, name) == []

    found = left(workshop, name, days=40)

    assert folders(found) == [(f"refresh {given_up.number}, abandoned", f"/{given_up.shadow}/1")]
    clean(found, actor=Actor.person("ann"))
    assert folders(left(workshop, name, days=40)) == []
    refresh(workshop, name)
    workshop.append("source", [NEWER])
    workshop.run_supervised(name)
    assert workshop.rows("target") == [*right(ROWS), *right([NEWER])]
    assert folders(left(workshop, name, days=8)) == [("generation 1", f"/{name}/1")]
