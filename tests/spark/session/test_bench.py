"""The test kit for users: the guide's example works, and what it promises beyond.

In every run the tests of a project that uses it stand for it (`tests/spark/runs/test_guides.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from sluice.errors import UsageError
from sluice.publication.crash_points import CrashPoint
from sluice_spark.testing import StreamBench

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "test-your-stream.md"


def examples() -> Iterator[Any]:
    """The test functions of the guide."""
    (code,) = re.findall(r"runs this example -->\n```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    defined: dict[str, Any] = {}
    exec(compile(code, str(GUIDE), "exec"), defined)  # noqa: S102  # our own guide
    for name, value in defined.items():
        if name.startswith("test_"):
            yield pytest.param(value, id=name)


@pytest.mark.full  # every run: the tests of another guide's project (`test_guides.py`)
@pytest.mark.parametrize("example", list(examples()))
def test_the_example_of_the_guide_works(
    example: Callable[[Callable[[str], StreamBench]], None], stream_bench: Callable[[str], StreamBench]
) -> None:
    example(stream_bench)


@pytest.mark.full  # every run: a project's tests (`test_guides.py`), and the README's stream
def test_records_static_tables_and_refused_rows(stream_bench: Callable[[str], StreamBench]) -> None:
    bench = stream_bench("silver_flights")
    bench.fill("reference.airlines", [{"carrier": "AA", "name": "American"}])
    sent_at = datetime(2013, 1, 1, tzinfo=UTC)
    record = {"topic": "flights", "partition": 0, "offset": 7, "timestamp": sent_at, "value": b"no flight"}
    bench.feed("records", [record])
    bench.run(crash_at=CrashPoint.PUBLISHED)
    bench.run()

    (refused,) = bench.refused()
    assert refused["payload"] == "no flight"
    assert bench.rows("silver.flights") == []


@pytest.mark.full  # two messages to whoever writes a test
def test_what_no_input_has_cannot_be_fed(stream_bench: Callable[[str], StreamBench]) -> None:
    bench = stream_bench("silver_flights")
    with pytest.raises(UsageError, match="no stream input airlines"):
        bench.feed("airlines", [])
    with pytest.raises(UsageError, match=r"has no column valeu; it has"):
        bench.feed("records", [{"valeu": "x"}])


@pytest.mark.full  # a mistake in a test is reported
def test_a_crash_at_a_place_that_is_never_reached_is_reported(stream_bench: Callable[[str], StreamBench]) -> None:
    bench = stream_bench("gold_delays_by_carrier_hour")
    bench.run()
    with pytest.raises(AssertionError, match="did not reach staged"):
        bench.run(crash_at=CrashPoint.STAGED)
