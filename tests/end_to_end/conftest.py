"""The whole platform, with Airflow."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.fixtures.stack import Stack, stack_in


@pytest.fixture(scope="session")
def full_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The whole stack with Airflow, running: first looked at as it is, then the demo runs on it and ends it."""
    with stack_in(tmp_path_factory.mktemp("full") / "data") as stack:
        stack.up()
        yield stack
