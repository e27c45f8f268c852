"""What a person has decided about a held batch is carried out by the next increment, though nothing is unread."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.sample_settings import sample_settings
from tests.fixtures.streams import continuous_stream
from tests.integration.supervision.test_rejecting_streams import deliver

from sluice.ledger.batches import PublicationKey
from sluice.ledger.connection import Ledger
from sluice.ledger.events import Actor, Event, EventAction
from sluice.ledger.generations import current_generation
from sluice.ledger.held_batches import HeldBatch, HeldDecision, decide_held, hold_batch
from sluice.ledger.run_values import RunState
from sluice.ledger.runs import admit_run, record_end
from sluice.settings import FilesConnection
from sluice.sources.source_heads import SourceHeads
from sluice.supervision.source_watch import has_nothing_to_do, observe_increment

FILES: dict[str, Any] = {
    "connection": "landing",
    "path": "in",
    "format": "json",
    "columns": [{"name": "id", "type": "long"}],
}


@pytest.mark.parametrize("decision", HeldDecision)
def test_a_decision_about_a_held_batch_is_something_to_do(
    ledger: Ledger, tmp_path: Path, decision: HeldDecision
) -> None:
    wanted = continuous_stream(
        mode="incremental",
        trigger=None,
        schedule={"cron": "@hourly"},
        inputs={"records": {"stream": {"files": FILES}}},
    )
    settings = sample_settings(tmp_path)
    root = tmp_path / "landing"
    landing = FilesConnection(kind="files", root=f"file://{root}")
    settings = settings.model_copy(update={"connections": {"landing": landing}})
    (root / "in").mkdir(parents=True)
    checkpoint = Path(
        current_generation(ledger, "flights", checkpoints_root=settings.checkpoints).checkpoint.removeprefix("file://")
    )
    (checkpoint / "sources" / "0").mkdir(parents=True)
    for number, name in enumerate(("good.json", "bad.json")):
        file = root / "in" / name
        file.write_text('{"id": 1}\n')
        read = {"path": f"file://{file}", "timestamp": int(file.stat().st_mtime * 1000), "batchId": number}
        (checkpoint / "sources" / "0" / str(number)).write_text(f"v1\n{json.dumps(read)}")
    run = admit_run(ledger, stream="flights", mode="incremental", declaration_digest=wanted.digest, launched_by="t")
    deliver(ledger, run, 0, refused=0)
    record_end(ledger, run.run_id, state=RunState.FINISHED, exit_code=0, reason="no more input")
    key = PublicationKey(stream="flights", generation=1, batch=1)
    hold_batch(ledger, HeldBatch(key=key, reason="temp_is_possible by 3 of 4 rows of rows", rows={"rows": 3}))
    heads = SourceHeads(settings)
    assert has_nothing_to_do(observe_increment(ledger, heads, wanted)), "nothing can be done until a person decides"

    event = Event(
        name="flights", actor=Actor.person("ann"), action=EventAction.RELEASE_BATCH, reason="requested", explanation=""
    )
    assert decide_held(ledger, key, decision, event, by="ann")

    assert not has_nothing_to_do(observe_increment(ledger, heads, replace(wanted)))
