"""The list of the families agrees with the families themselves."""

from __future__ import annotations

import pytest

from sluice.cli.families import FAMILIES, Family


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_listed_help_is_the_first_line_of_the_familys_own_help(family: Family) -> None:
    assert (family.load().help or "").partition("\n")[0] == family.help


def test_a_family_is_listed_once() -> None:
    names = [family.name for family in FAMILIES]
    assert names == list(dict.fromkeys(names))
