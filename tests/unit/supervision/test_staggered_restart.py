"""Which drivers an upgrade leaves behind."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.fixtures.streams import continuous_stream
from tests.unit.supervision.supervision_cases import FAILED, a_run

from sluice.errors import UsageError
from sluice.supervision.stream_commands import started_before

STREAMS = [continuous_stream(name) for name in ("new", "old", "unknown", "ended", "never_ran")]
RUNS = [
    replace(a_run(), stream="new", version="0.10.0"),
    replace(a_run(), stream="old", version="0.9.1"),
    replace(a_run(), stream="unknown", version=""),
    replace(FAILED, stream="ended", version="0.1.0"),
    replace(a_run(), stream="undeclared", version="0.1.0"),
]


@pytest.mark.parametrize(
    ("version", "older"),
    [("0.10.0", ["old", "unknown"]), ("0.9.1", ["unknown"]), ("0.10.1", ["new", "old", "unknown"]), ("0", ["unknown"])],
)
def test_those_whose_live_driver_was_started_by_an_older_program(version: str, older: list[str]) -> None:
    assert [stream.name for stream in started_before(version, STREAMS, RUNS)] == older


def test_an_increment_ends_by_itself() -> None:
    increment = replace(STREAMS[1], declaration=STREAMS[1].declaration.model_copy(update={"mode": "incremental"}))
    assert started_before("1.0", [increment], RUNS) == ()


def test_what_is_no_version_is_refused() -> None:
    with pytest.raises(UsageError, match="newest is no version"):
        started_before("newest", STREAMS, RUNS)
