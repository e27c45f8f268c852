"""What replaces rows by computed ones is not published where fewer rows would come than go."""

from __future__ import annotations

import pytest

from sluice.errors import UnpublishableError
from sluice.operations import require_no_fewer


@pytest.mark.parametrize(("came", "gone"), [(0, 0), (6, 6), (7, 6)])
def test_as_many_rows_or_more_are_admitted(came: int, gone: int) -> None:
    require_no_fewer(came=came, gone=gone, what="silver.flights")


@pytest.mark.parametrize(("came", "gone"), [(0, 6_000), (5_999, 6_000)])
def test_fewer_rows_are_refused_with_both_numbers_and_the_way_on(came: int, gone: int) -> None:
    with pytest.raises(UnpublishableError) as refused:
        require_no_fewer(came=came, gone=gone, what="silver.flights")

    assert refused.value.message == (
        f"Refused: silver.flights holds 6,000 rows, and {came:,} would take their place. Nothing was published."
    )
    assert "`--allow-fewer`" in (refused.value.next_step or "")
    assert '{"allow_fewer": true}' in (refused.value.next_step or "")
