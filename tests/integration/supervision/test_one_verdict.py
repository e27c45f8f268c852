"""One stream has one state: for its supervisor, on the command line, and on the pages."""

from __future__ import annotations

from pathlib import Path

from tests.fakes.launcher import FakeLauncher
from tests.fixtures.streams import continuous_stream
from tests.fixtures.supervised_runs import deliver_first_batch, process_of

from sluice.declarations.loaded_declarations import Declarations, LoadedStream
from sluice.ledger.connection import Ledger
from sluice.ledger.runs import beat, newest_run
from sluice.pages.stream_lines import observe_streams
from sluice.supervision.stream_status import observe_rows
from sluice.supervision.stream_verdict import StreamState
from sluice.supervision.supervision_values import SupervisionReason
from sluice.supervision.supervisor import Supervisor, plan_supervision, supervise

QUICK = {"first_delay": "1 millisecond"}
HERE, THERE = continuous_stream(restart=QUICK), continuous_stream(digest="other", restart=QUICK)


def declared(stream: LoadedStream) -> Declarations:
    """The folder of a host."""
    return Declarations(
        folder=Path("/pipelines"),
        streams={stream.name: stream},
        tables={},
        problems=(),
        stream_names=(stream.name,),
        table_names=(),
    )


def test_hosts_with_different_files_are_seen_alike_by_supervisor_command_line_and_page(
    supervisor: Supervisor, launcher: FakeLauncher, ledger: Ledger
) -> None:
    run = supervise(supervisor, HERE).run
    assert run is not None
    beat(ledger, run.run_id)
    deliver_first_batch(ledger, run, HERE)
    for wanted in (THERE, HERE, THERE):
        supervise(supervisor, wanted)
        newest = newest_run(ledger, "flights")
        assert newest is not None
        launcher.end(process_of(newest), exit_code=0)
        again = supervise(supervisor, wanted).run
        assert again is not None
        beat(ledger, again.run_id)

    decision = plan_supervision(HERE, ledger=ledger, launcher=launcher).decision
    row = observe_rows([HERE], ledger=ledger, launcher=launcher, heads=None)[0]
    (line,) = observe_streams(ledger, declared(HERE), launcher=launcher, may_read=frozenset, with_history=False).lines

    assert (decision.reason, decision.is_healthy) == (SupervisionReason.FILES_DIFFER, False)
    assert (row.verdict.state, row.verdict.is_healthy) == (StreamState.FILES_DIFFER, False)
    assert (line.state, line.is_healthy) == (StreamState.FILES_DIFFER, False)
    assert line.explanation == row.verdict.explanation
