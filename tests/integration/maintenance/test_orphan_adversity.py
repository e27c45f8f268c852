"""What a removal must not take in states that come about by accident: each test is a way in which a file was lost."""

from __future__ import annotations

import os
from datetime import timedelta

import pytest
from sqlalchemy import update
from tests.fixtures.left_files import Yard, catalog_place, yard
from tests.integration.maintenance.test_orphan_guards import (
    left_by_a_dead_run,
    lose_a_batch,
    path_of,
    pointers,
    refer_to,
    restore,
)

from sluice.errors import UnpublishableError
from sluice.ledger.run_leases import Run
from sluice.maintenance.orphan_files import CLOCK_MARGIN, FileFate
from sluice.publication.crash_points import CrashPoint

__all__ = ["catalog_place", "yard"]


class KilledError(BaseException):
    """The process ends here."""


def test_a_table_with_a_dot_in_its_name_keeps_a_file(yard: Yard) -> None:
    left = left_by_a_dead_run(yard)
    schema = yard.bench.target().schema()
    other = yard.bench.catalog.create_table((yard.bench.output.stream, "copy.of.march"), schema)
    other.add_files([f"file://{path_of(yard, left)}"], check_duplicate_files=False)
    assert yard.fates()[left] is FileFate.NEEDED


def test_a_staged_batch_that_a_restored_catalog_has_forgotten_stays(yard: Yard) -> None:
    backup, before = pointers(yard.bench), yard.data_files()
    yard.bench.stage(2, [20])
    (held,) = yard.data_files() - before
    restore(yard.bench, backup)
    yard.end()
    assert yard.fates()[held.name] is FileFate.NEEDED


@pytest.mark.full  # every run: `test_needed_files.py`
def test_a_lost_state_is_found_where_old_metadata_is_deleted(yard: Yard) -> None:
    """The files that had the numbers of the lost ones are gone, so that no number is there twice."""
    few = {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "2"}
    with yard.bench.target().transaction() as change:
        change.set_properties(few)
    lost = lose_a_batch(yard)
    for number in range(6):
        yard.bench.write_as_another(100 + number)
    yard.end()
    assert yard.fates()[lost] is FileFate.NEEDED


def test_what_was_brought_back_soon_after_its_writer_ended_is_never_moved_again(yard: Yard) -> None:
    left, ended = left_by_a_dead_run(yard), timedelta(days=4)
    with yard.ledger.transaction() as connection:
        connection.execute(
            update(Run).where(Run.stream == yard.bench.output.stream).values(ended_at=yard.made_at + ended)
        )
    assert yard.remove(after=ended + 2 * CLOCK_MARGIN) == set()
    asked = ended + 2 * CLOCK_MARGIN + timedelta(seconds=1)
    assert yard.remove(after=asked) == {left}
    yard.removal(after=asked).restore(yard.name)
    by_a_slow_clock = (yard.made_at + asked - CLOCK_MARGIN).timestamp()
    os.utime(path_of(yard, left), (by_a_slow_clock, by_a_slow_clock))
    assert yard.removal(after=timedelta(days=30)).remove(yard.name).seen.left == ()


def test_a_removal_that_was_killed_before_it_looked_again_names_the_way_back(yard: Yard) -> None:
    left = left_by_a_dead_run(yard)
    yard.age()
    path = path_of(yard, left)

    def reached(point: CrashPoint) -> None:
        if point is CrashPoint.BEGUN:
            refer_to(yard, path)
        if point is CrashPoint.CLEARED:
            raise KilledError

    with pytest.raises(KilledError):
        yard.removal(reached=reached).remove(yard.name)
    with pytest.raises(UnpublishableError, match="refers to 1 files in the trash") as refused:
        yard.removal().remove(yard.name)
    assert f"sluice table restore-orphans {yard.name}" in refused.value.next_step
    yard.removal().restore(yard.name)
    assert path.exists()
    assert yard.remove() == set()
