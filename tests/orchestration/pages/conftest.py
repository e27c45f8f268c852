"""Streams of the ring's Airflow as the pages show them."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Browser
from tests.fixtures.airflow import RunningAirflow
from tests.fixtures.browser import running_browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A Chromium. Of a module and not of the session: while it runs, no other event loop can in its thread."""
    with running_browser() as running:
        yield running


@pytest.fixture(scope="module")
def as_viewer(airflow: RunningAirflow) -> Iterator[httpx.Client]:
    """A client with the cookie of a viewer, as a browser has it."""
    with client_of(airflow, "viewer") as client:
        yield client


@pytest.fixture(scope="module")
def as_admin(airflow: RunningAirflow) -> Iterator[httpx.Client]:
    """A client with the cookie of an administrator."""
    with client_of(airflow, "admin") as client:
        yield client


@pytest.fixture(scope="module")
def as_stranger(airflow: RunningAirflow) -> Iterator[httpx.Client]:
    """A client without a login."""
    with httpx.Client(base_url=airflow.client.base_url, timeout=30) as client:
        yield client


def client_of(airflow: RunningAirflow, user: str) -> httpx.Client:
    """A client that is logged in by cookie."""
    cookies = {"_token": airflow.token(user)}
    return httpx.Client(base_url=airflow.client.base_url, cookies=cookies, timeout=30, follow_redirects=True)
