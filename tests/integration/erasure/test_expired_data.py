"""Data files that only expired snapshots list go with them, and no other. No Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fixtures.drill import first_of
from tests.fixtures.erasing import ANN, Died, Dying, Household, home

from sluice.errors import UnhealthyError
from sluice.ledger.table_writers import LONGEST_WRITE
from sluice.publication.crash_points import CrashPoint

__all__ = ["home"]


@pytest.mark.full  # every run: a killed erasure (`test_erasures.py`)
@pytest.mark.parametrize("times", [2, 0, 1, 3])
def test_rows_that_only_expired_snapshots_list_are_gone_with_them(home: Household, tmp_path: Path, times: int) -> None:
    home.declare()
    home.append(("Carl", 8))
    home.append((ANN, 1), ("Bob", 2))
    home.table().delete("id = 8")
    if times:
        with pytest.raises(Died):
            home.erasure(reached=Dying(CrashPoint.CLEARED, times), longest_commit=LONGEST_WRITE).erase()
    home.erasure(longest_commit=LONGEST_WRITE).erase()
    assert home.raw(tmp=tmp_path) == home.rows() == [("Bob", 2)]


@pytest.mark.parametrize("who", first_of("another table", "a later snapshot", "no collection"))
def test_a_file_that_is_needed_elsewhere_stays(home: Household, tmp_path: Path, who: str) -> None:
    home.declare()
    home.append(("Carl", 8))
    home.append((ANN, 1), ("Bob", 2))
    path = next(one.file.file_path for one in home.table().scan("id = 8").plan_files())
    home.table().delete("id = 8")
    if who == "another table":
        home.bench.catalog.load_table(f"{home.writer}.copies").add_files([path])
    if who == "no collection":
        with home.table().transaction() as transaction:
            transaction.set_properties({"gc.enabled": "false"})

    def bring_back(point: CrashPoint) -> None:
        if point is CrashPoint.RECORDED and who == "a later snapshot":
            home.table().add_files([path])

    home.erasure(reached=bring_back).erase()
    assert home.raw(tmp=tmp_path) == [("Bob", 2), ("Carl", 8)]


def test_an_erasure_is_completed_on_the_day_on_which_another_one_has_cut_history(
    home: Household, tmp_path: Path
) -> None:
    home.declare(reads="skip")
    home.append((ANN, 1), ("Eve", 4))
    home.append(("Bob", 2), ("Carl", 8))
    home.read_up_to(home.head(), files=1)
    with pytest.raises(UnhealthyError, match="has read up to"):
        home.erasure(longest_commit=LONGEST_WRITE).erase()
    with pytest.raises(UnhealthyError, match="has read up to"):
        home.erasure("kind = 'Bob'", longest_commit=LONGEST_WRITE).erase()
    home.read_up_to(home.head(), files=0)
    home.erasure("kind = 'Bob'", longest_commit=LONGEST_WRITE).erase()
    home.erasure(longest_commit=LONGEST_WRITE).erase()
    assert home.raw(tmp=tmp_path) == [("Carl", 8), ("Eve", 4)]
