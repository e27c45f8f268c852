"""The copy at an orderly stop, where the checkpoint lies in a file system that only Spark reads."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import SecretStr
from sqlalchemy import create_engine

from sluice.ledger.connection import Ledger
from sluice.settings import CatalogSettings, ObjectStoreSettings, Settings
from sluice.supervision.held_lease import HeldLease
from sluice_spark.run.run_threads import RunCopies
from sluice_spark.run.stop_request import StopRequest

CHECKPOINT = "hdfs://name/checkpoints/silver/1"


def test_such_a_checkpoint_has_no_copy_and_the_run_ends_well(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = Settings(
        home=tmp_path,
        jars=tmp_path,
        logs=tmp_path,
        reports=tmp_path,
        ledger_url=SecretStr("sqlite://"),
        checkpoints="hdfs://name/checkpoints",
        catalog=CatalogSettings(uri="http://c", warehouse="s3://w"),
        object_store=ObjectStoreSettings(),
    )
    ledger, lease = Ledger(create_engine("sqlite://")), HeldLease(stream="silver", token=1)

    RunCopies(ledger=ledger, settings=settings, checkpoint=CHECKPOINT, lease=lease, stop=StopRequest()).copy_at_stop()

    assert "has the scheme hdfs" in caplog.text
