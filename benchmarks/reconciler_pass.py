"""How long one pass of the reconciler takes over 200 streams whose ledger has grown for a month.

    .venv/bin/python -m benchmarks.reconciler_pass [--streams 200] [--batches 5000] [--long 2] [--days 30]

Most streams have a few thousand batches; the long ones have one every two seconds for all days, because a month of all
streams would be 260 million rows. By the indexes a look costs the same in both, which the table shows. The sources and
the drivers are not part of it: they answer at once. Ends with 1 when a pass takes more than 5 seconds, or a look more
than 20 ms in the database.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from sqlalchemy import event
from tests.fixtures.grown_ledgers import AliveLauncher, let_grow, looked, named
from tests.fixtures.ledger import running_postgres

from sluice.errors import LaunchError
from sluice.launching.launcher_port import LaunchRequest
from sluice.ledger.connection import Ledger, connection_use, open_ledger
from sluice.ledger.migrations import upgrade
from sluice.supervision.stream_status import observe_rows
from sluice.supervision.supervisor import Supervisor

MOST_PASS_SECONDS = 5.0
MOST_LOOK_MS = 20.0
_SECONDS_A_DAY = 86_400


@contextmanager
def database_seconds(ledger: Ledger) -> Iterator[list[float]]:
    """How long each statement took, seen from the client."""
    took: list[float] = []

    def begin(connection: Any, *_: Any) -> None:
        connection.info["began"] = time.perf_counter()

    def end(connection: Any, *_: Any) -> None:
        took.append(time.perf_counter() - connection.info["began"])

    event.listen(ledger.engine, "before_cursor_execute", begin)
    event.listen(ledger.engine, "after_cursor_execute", end)
    try:
        yield took
    finally:
        event.remove(ledger.engine, "before_cursor_execute", begin)
        event.remove(ledger.engine, "after_cursor_execute", end)


def _no_driver(*_: object) -> LaunchRequest:
    raise LaunchError("this benchmark starts no driver")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--batches", type=int, default=5_000)
    parser.add_argument("--long", type=int, default=2)
    parser.add_argument("--days", type=float, default=30)
    chosen = parser.parse_args(arguments)
    streams, of = chosen.streams, chosen.streams + chosen.long
    logging.disable(logging.WARNING)  # a line for each look
    table = Table(title=f"The reconciler over {streams} streams")
    for heading in ("what", "seconds", "in the database, ms", "statements"):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    with (
        tempfile.TemporaryDirectory(prefix="sluice-pass-") as place,
        running_postgres(Path(place)) as server,
    ):
        url = server.url.render_as_string(hide_password=False)
        upgrade(url)
        with open_ledger(url) as ledger:
            let_grow(
                ledger,
                streams=streams,
                batches=chosen.batches,
                runs=300,
                digest="d",
                long_streams=chosen.long,
                long_batches=int(chosen.days * _SECONDS_A_DAY / 2),
            )
            supervisor = Supervisor(
                ledger=ledger, launcher=AliveLauncher(ledger), request_for=_no_driver, launched_by="a benchmark"
            )
            worst_pass, worst_look = 0.0, 0.0
            for number in range(3):
                with database_seconds(ledger) as took:
                    began = time.perf_counter()
                    looked(supervisor, ledger, streams=streams, of=of)
                    seconds = time.perf_counter() - began
                worst_pass = max(worst_pass, seconds)
                table.add_row(f"pass {number + 1}", f"{seconds:.2f}", f"{1000 * sum(took):.0f}", str(len(took)))
            for name, number in (("a look at one stream", 0), ("a look at a long stream", streams)):
                with database_seconds(ledger) as took:
                    observe_rows([named(number)], ledger=ledger, launcher=supervisor.launcher, heads=None)
                worst_look = max(worst_look, 1000 * sum(took))
                table.add_row(name, f"{sum(took):.3f}", f"{1000 * sum(took):.1f}", str(len(took)))
            use = connection_use(ledger)
    Console().print(table)
    Console().print(f"connections in use at the end: {use.used} of {use.allowed}")
    return int(worst_pass > MOST_PASS_SECONDS or worst_look > MOST_LOOK_MS)


if __name__ == "__main__":
    sys.exit(main())
