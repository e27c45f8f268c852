"""Which static inputs find less than batches have found."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from tests.unit.maintenance.test_old_files import NAME, Place, catalog, place

from sluice.backfill.old_input_rows import shortened_lookups
from sluice.declarations.stream_declaration import StreamDeclaration

__all__ = ["catalog", "place"]

BORDER = datetime(2026, 8, 22, 12, tzinfo=UTC)


def looking_up(**how: Any) -> StreamDeclaration:
    """A stream that looks rows up in the table, and reads the same one as a stream."""
    return StreamDeclaration.model_validate(
        {
            "stream": "enriched",
            "description": "looks up",
            "owner": "me",
            "mode": "continuous",
            "trigger": {"processing_time": "2 seconds"},
            "inputs": {
                "read": {"stream": {"iceberg": {"table": NAME}}},
                "found": {"static": {"iceberg": {"table": NAME, **how}}},
                "other": {"static": {"iceberg": {"table": "silver.absent"}}},
            },
            "transformation": {"sql": "enriched.sql"},
            "outputs": {"main": {"iceberg": {"table": "silver.enriched"}}},
        }
    )


@pytest.mark.parametrize("how", [{"tag": "v1"}, {"snapshot_id": 7}, {"as_of": "2026-11-01T00:00:00Z"}])
def test_a_lookup_in_a_table_that_has_removed_rows_is_named(place: Place, how: Any) -> None:
    assert list(shortened_lookups(looking_up(), place.catalog)) == []
    place.remove()
    (found,) = shortened_lookups(looking_up(), place.catalog)
    assert (found.input, found.table, found.removed.before) == ("found", NAME, BORDER)
    assert list(shortened_lookups(looking_up(**how), place.catalog)) == [], "a fixed state has them"
