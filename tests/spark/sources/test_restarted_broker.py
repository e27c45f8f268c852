"""A broker that restarts between the look at the topics and the reading of a batch: each record is read once.

It ends the broker of all tests for a while: every test run compares the ids of topics (`test_replaced_inputs.py`).
"""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import psutil
import pytest
from tests.fixtures.recreated_topics import Topic
from tests.fixtures.stack import Stack
from tests.fixtures.workshop import Workshop

from sluice.ledger.batches import newest_batch
from sluice.ledger.generations import find_generation
from sluice.sources.input_watch import InputWatch
from sluice.sources.source_heads import SourceHeads

OLD, NEW = [f"old{number}" for number in range(5)], [f"new{number}" for number in range(8)]
CONTINUOUS = {"mode": "continuous", "trigger": {"processing_time": "1 second"}}


def kill_broker(services: Stack) -> None:
    """End the broker without a word."""
    broker = psutil.Process(services.status()["kafka"]["pid"])
    os.kill(broker.pid, signal.SIGKILL)
    psutil.wait_procs([broker], timeout=30)


@pytest.mark.full
@pytest.mark.parametrize("how", [{}, CONTINUOUS], ids=["incremental", "continuous"])
def test_a_broker_that_restarts_behind_the_look_loses_and_doubles_nothing(
    workshop: Workshop, services: Stack, monkeypatch: pytest.MonkeyPatch, how: dict[str, Any]
) -> None:
    topic, looks = Topic(workshop, how=how), 0
    topic.send(OLD)
    topic.run(stop_when=lambda _: True)
    topic.send(NEW)
    heads, stream = SourceHeads(workshop.settings), workshop.stream(topic.stream).declaration
    generation = find_generation(workshop.ledger, topic.stream)
    assert generation is not None
    known = generation.identities
    look, starting = InputWatch.look, threading.Thread(target=services.up, args=(("kafka",),))

    def look_and_restart(watch: InputWatch) -> None:
        nonlocal looks
        look(watch)
        looks += 1
        if looks == 1:
            kill_broker(services)
            starting.start()  # the batch begins to read while it comes up

    before = heads.observe_lag(stream, newest_batch(workshop.ledger, topic.stream), known=known)
    monkeypatch.setattr(InputWatch, "look", look_and_restart)
    topic.run(stop_when=lambda _: True)
    starting.join()

    assert before.rows == len(NEW)
    assert topic.values() == sorted([*NEW, *OLD])
    after = heads.observe_lag(stream, newest_batch(workshop.ledger, topic.stream), known=known)
    assert (after.rows, after.problem) == (0, "")
    topic.send(["last"])
    topic.run(stop_when=lambda _: True)
    assert topic.values() == sorted([*NEW, "last", *OLD])
