"""Equal floating keys are duplicates in a stream too: zeros of both signs, and every NaN."""

from __future__ import annotations

import datetime as dt
import struct

import pytest
from tests.fixtures.workshop import Workshop

OTHER_NAN = struct.unpack(">d", bytes.fromhex("7ff8000000000001"))[0]
VALUES = [0.0, -0.0, float("nan"), OTHER_NAN, 1.5]


@pytest.mark.parametrize("is_within", [False, pytest.param(True, marks=pytest.mark.full)])
def test_equal_floating_keys_are_dropped_and_counted(workshop: Workshop, *, is_within: bool) -> None:
    stream = f"s{workshop.namespace}"
    source = workshop.declare_table("source", {"x": "double", "at": "timestamptz"})
    target = workshop.declare_table("target", {"x": "double"})
    drop = "dropDuplicatesWithinWatermark(['x'])" if is_within else "dropDuplicates(['x'])"
    workshop.declare_stream(
        stream,
        python=f"def transform(r):\n    return r.{drop}.select('x')\n",
        inputs={
            "r": {
                "stream": {"iceberg": {"table": source}},
                "watermark": {"column": "at", "delay": "1 hour"},
            }
        },
        outputs={"main": {"iceberg": {"table": target}}},
    )
    now = dt.datetime.now(dt.UTC)
    workshop.append("source", [{"x": value, "at": now} for value in VALUES])

    batches = workshop.run(stream).batches

    assert len(workshop.rows(target)) == 3
    assert sum(batch.duplicate_rows for batch in batches) == 2
