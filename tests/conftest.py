"""What holds for every ring of tests. Each ring's `conftest.py` loads the fixtures that only it asks for."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

gc.disable()  # until the tests are collected: what is imported stays, and is searched again and again

pytest.register_assert_rewrite("tests.fixtures")


settings.register_profile("sluice", deadline=None)
settings.load_profile("sluice")
"""On a busy machine an example takes as long as it takes: a test is never timed."""


def pytest_collection_finish() -> None:
    """Exclude everything that was imported from garbage collection: it all stays, and one scan of it takes 0.3 s."""
    gc.freeze()
    gc.enable()


def pytest_configure() -> None:
    """Take SIGINT back: a shell that starts the tests in the background makes them, and their children, ignore it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def without_the_persons_own_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the stack that a person runs in this checkout, and its settings, out of every test."""
    with pytest.MonkeyPatch.context() as patch:
        for name in os.environ:
            if name.startswith(("SLUICE_", "AIRFLOW_")) and name != "SLUICE_JARS":
                patch.delenv(name)
        patch.setenv("SLUICE_DATA", str(tmp_path_factory.mktemp("no-stack")))
        yield
