"""Streams of the ring's Airflow as the pages show them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser
from tests.fixtures.browser import running_browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A Chromium. Of a module and not of the session: while it runs, no other event loop can in its thread."""
    with running_browser() as running:
        yield running
