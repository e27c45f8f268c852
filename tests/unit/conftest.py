"""Single parts: the README is all that they share."""

from __future__ import annotations

import pytest
from tests.fixtures.loading import load_fixtures


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Load this ring's fixtures."""
    load_fixtures(collector, "readme")
