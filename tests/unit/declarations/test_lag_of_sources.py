"""Limits of progress are refused where no source of the stream can be judged by them."""

from __future__ import annotations

from typing import Any

import pytest
from tests.fixtures.streams import continuous_stream

from sluice.declarations.checks.combinations import unobservable_limits

KAFKA = {"kafka": {"connection": "c", "topics": ["t"]}}
FILES = {
    "files": {"connection": "landing", "path": "in", "format": "json", "columns": [{"name": "a", "type": "string"}]}
}
SOCKET = {"socket": {"host": "localhost", "port": 9}}
DELTA = {"delta": {"connection": "lake", "path": "orders"}}
KINESIS = {"kinesis": {"connection": "k", "stream": "s"}}
RATE: dict[str, Any] = {"rate": {}}
BOTH = {"on_stall": "restart", "max_lag": {"rows": 5}}


@pytest.mark.parametrize(
    ("sources", "supervision", "refused"),
    [
        ((KAFKA,), BOTH, []),
        ((FILES,), BOTH, ["supervision.max_lag"]),
        ((SOCKET,), BOTH, ["supervision.on_stall", "supervision.max_lag"]),
        ((RATE,), BOTH, ["supervision.max_lag"]),
        ((DELTA,), {"on_stall": "restart"}, []),
        ((KINESIS,), {"on_stall": "restart"}, []),
        ((KAFKA, RATE), BOTH, ["supervision.max_lag"]),
        ((RATE,), {"stall_after": "1 hour"}, []),
        ((RATE,), {"on_stall": "alert"}, []),
    ],
)
def test_a_limit_that_could_never_have_an_effect_is_refused(
    sources: tuple[dict[str, Any], ...], supervision: dict[str, Any], refused: list[str]
) -> None:
    inputs = {f"input_{number}": {"stream": source} for number, source in enumerate(sources)}
    stream = continuous_stream(inputs=inputs, supervision=supervision)
    problems = [str(problem) for problem in unobservable_limits(stream)]
    assert [problem.partition("`")[2].partition("`")[0] for problem in problems] == refused
    assert all("cannot be observed, because its inputs are" in problem for problem in problems)
