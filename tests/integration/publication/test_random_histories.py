"""Random histories of drivers, zombies and other people's hands: whatever came before, every batch is there once.

Every run takes each of their steps alone (`test_recovery.py`, `test_zombies.py`, `test_foreign_hands.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.fixtures.publication import Workbench, offsets

from sluice.errors import StaleTokenError

ZOMBIES_ROWS = 1000
"""What a zombie stages has ids from here on: none of it may ever be seen."""

OTHERS_ROW = -1


@dataclass(slots=True, kw_only=True)
class History:
    """One stream's life. staged: how many batches its rightful drivers have staged; batch n brings the id n."""

    driver: Workbench
    staged: int = 0
    superseded: list[str] = field(default_factory=list)

    def stage(self) -> None:
        """The next batch."""
        self.driver.stage(self.staged, [self.staged])
        self.staged += 1

    def stage_again(self) -> None:
        """The newest batch once more, as after a lost answer."""
        if self.staged:
            self.driver.stage(self.staged - 1, [self.staged - 1])

    def zombie_stages(self) -> None:
        """The next batch by a driver that was replaced; it has planned another end."""
        if self.driver.run > 1:
            other_end = offsets(10 * self.staged + 7)
            self._zombie().stage(self.staged, [ZOMBIES_ROWS + self.staged], end_offsets=other_end)

    def publish(self) -> None:
        """All that is ready."""
        self.driver.publish(*self.driver.plan().ready)

    def publish_merged(self) -> None:
        """All that is ready, small files put together."""
        published = self.driver.publish(*self.driver.plan().ready, merge_small=True)
        self.superseded.extend(published.superseded_files)

    def zombie_publishes(self) -> None:
        """All that a driver that was replaced finds ready."""
        if self.driver.run > 1:
            zombie = self._zombie()
            with pytest.raises(StaleTokenError):
                zombie.publish(*zombie.plan().ready)

    def replace_driver(self) -> None:
        """A new run begins."""
        self.driver = self.driver.as_run(self.driver.run + 1)
        self.driver.begin()

    def clear(self) -> None:
        """Let the staging table forget."""
        self.driver.clear(superseded_files=self.superseded)
        self.superseded.clear()

    def expire(self) -> None:
        """Somebody expires all history."""
        self.driver.expire_all_but_the_newest()

    def compact(self) -> None:
        """Somebody compacts."""
        self.driver.compact()

    def others_write(self) -> None:
        """Somebody appends."""
        self.driver.write_as_another(OTHERS_ROW)

    def _zombie(self) -> Workbench:
        return self.driver.as_run(self.driver.run - 1)


STEPS = (
    History.stage,
    History.stage_again,
    History.zombie_stages,
    History.publish,
    History.publish_merged,
    History.zombie_publishes,
    History.replace_driver,
    History.clear,
    History.expire,
    History.compact,
    History.others_write,
)


@pytest.mark.full
@pytest.mark.parametrize("catalog_place", ["sql"], indirect=True)
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.sampled_from(STEPS) | st.just(History.stage), min_size=5, max_size=25))
def test_every_batch_is_there_once(new_bench: Callable[..., Workbench], steps: list[Callable[[History], None]]) -> None:
    made = new_bench()
    with closing(made.catalog):
        live_through(replace(made, open_catalog=lambda: made.catalog), steps)  # all steps share one connection


def live_through(bench: Workbench, steps: list[Callable[[History], None]]) -> None:
    bench.declare()
    bench.begin()
    history = History(driver=bench)
    for step in steps:
        step(history)
        seen = [value for value in bench.ids() if value != OTHERS_ROW]
        assert seen == list(range(len(seen))), "a batch is missing, doubled, or a zombie's"
        assert len(seen) <= history.staged
    history.driver.recover()
    assert [value for value in bench.ids() if value != OTHERS_ROW] == list(range(history.staged))
