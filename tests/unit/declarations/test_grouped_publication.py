"""Batches wait to be published together only where no other output waits for the table."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError
from tests.fixtures.streams import continuous_stream

TABLE = {"iceberg": {"table": "silver.rows", "publish_every": "30 seconds"}}


@pytest.mark.parametrize(
    "other",
    [
        {"kafka": {"connection": "c", "topic": "t"}},
        {"files": {"connection": "c", "path": "p"}},
        {"python": {"function": "f.py:send"}},
        {"console": {}},
    ],
    ids=lambda other: next(iter(other)),
)
def test_an_output_beside_the_tables_gets_a_batch_after_them(other: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="`sent` gets a batch only when the table has it"):
        continuous_stream(outputs={"kept": TABLE, "sent": other})


def test_tables_alone_and_their_quarantine_may_be_published_together() -> None:
    other = {"iceberg": {"table": "silver.words", "publish_every": "30 seconds"}}
    assert continuous_stream(outputs={"kept": TABLE, "words": other}, quarantine=True).declaration.publish_every


def test_each_batch_by_itself_goes_with_every_output() -> None:
    alone = {"iceberg": {"table": "silver.rows"}}
    assert continuous_stream(outputs={"kept": alone, "sent": {"console": {}}}).declaration.publish_every is None
