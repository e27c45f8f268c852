"""The list of the families agrees with the families themselves."""

from __future__ import annotations

import pytest

from sluice.cli.families import FAMILIES, Family


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_listed_help_is_the_first_line_of_the_familys_own_help(family: Family) -> None:
    assert (family.load().help or "").partition("\n")[0] == family.help
