"""Real databases, catalogs, programs and processes."""

from __future__ import annotations

import pytest
from tests.fixtures.loading import load_fixtures


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Load this ring's fixtures."""
    load_fixtures(
        collector,
        "answered_work",
        "kinesis",
        "ledger",
        "publication_catalogs",
        "registry",
        "stack",
        "stream_commands",
    )
