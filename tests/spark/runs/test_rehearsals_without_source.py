"""Rehearsals of a copy whose source is gone, and what a rehearsal leaves.

Every test run has a rehearsal that ends well (`test_copy_rehearsals.py`).
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from confluent_kafka.admin import AdminClient
from tests.faults.ways_out.kinds import Kind
from tests.fixtures.workshop import Workshop
from tests.spark.runs.test_copy_rehearsals import folders, rehearsed, stopped

from sluice.checkpoints.checkpoint_copies import find_rehearsal, list_copies
from sluice.settings import KafkaConnection
from sluice.sources.kafka_clients import client_settings


@pytest.mark.full
def test_a_copy_whose_source_is_gone_is_not_shown_as_one_that_does(workshop: Workshop) -> None:
    subject = stopped(workshop, Kind.K)
    assert rehearsed(subject).problem == ""
    connection = workshop.settings.connection("flights_kafka", KafkaConnection)
    admin = AdminClient(client_settings(connection))
    for done in admin.delete_topics([subject.topic]).values():
        done.result()
    copies, _ = folders(subject)
    problem = rehearsed(subject).problem

    found = find_rehearsal(copies, list_copies(copies)[0])
    assert found is not None
    assert found.problem == problem
    assert problem.endswith(f"the topic {subject.topic} is not there any more")


@pytest.mark.full
def test_a_rehearsal_leaves_no_folders(workshop: Workshop) -> None:
    """200 partitions of each operator, for each generation, are as many folders for ever: what has no file is no
    leftover."""
    subject = stopped(workshop, Kind.G)
    rehearsed(subject)
    _, trial = folders(subject)
    folder = Path(unquote(urlsplit(trial.location).path))

    assert not folder.exists(), f"{sum(one.is_dir() for one in folder.rglob('*'))} empty folders are left"
