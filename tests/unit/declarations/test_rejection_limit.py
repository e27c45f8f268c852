"""Where `max_rejected` may hold batches: what is staged for tables, one by one, with a quarantine that is counted."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError
from tests.fixtures.streams import continuous_stream
from tests.unit.refresh.test_refresh_plan import OPEN

from sluice.refresh.shadow_stream import shadow_of

HOLDS = {"max_rejected": {"rows": 1, "action": "hold"}}
GROUPED = {"iceberg": {"table": "silver.rows", "publish_every": "30 seconds"}}


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        ({}, "the stream has none: write `quarantine: true`"),
        ({"quarantine": True, "outputs": {"sent": {"console": {}}}}, "an output is no table: write `stop`"),
        ({"quarantine": True, "outputs": {"rows": GROUPED}}, "`publish_every` publishes several together"),
    ],
    ids=["no quarantine", "no table", "grouped"],
)
def test_what_cannot_be_held_is_refused_where_it_is_declared(parts: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        continuous_stream(supervision=HOLDS, **parts)
    warning = {"max_rejected": {"rows": 1}}
    assert continuous_stream(supervision=warning, **parts).declaration.rejections_held_beyond is None


def test_a_shadow_waits_for_no_person() -> None:
    stream = continuous_stream(supervision=HOLDS, quarantine=True)
    assert stream.declaration.rejections_held_beyond is not None
    shadow = shadow_of(stream, OPEN).declaration
    assert (shadow.rejections_held_beyond, shadow.quarantine) == (None, True)
