"""Random streams, with a crash each, and DuckDB says what their tables and the ledger must hold.

    python -m tests.faults.differential [--cases 2000] [--seed 0] [--time-zone Europe/Berlin] [--processes 2] [--json]

Prints each difference as a case that was made as small as possible: declaration, rows, and what differs. Ends with 1
when there is one. A seed repeats a case: `--seed 4711 --cases 1`. The host of all streams has the time zone. Processes
run blocks of cases, each in a JVM of its own, beside one set of services; Ctrl-C ends them all and reports the
blocks that were done, with the exit code 130. Everything is kept below the folder of `TMPDIR`: in memory it is faster.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from tests.differential.seed_block import BlockResult, Difference, SeedBlock
from tests.fixtures.stack import stack_in

_CASES_OF_A_PROCESS = 125
"""A JVM needs some cases to become quick, and keeps about two megabytes of each."""

_LONGEST_END_SECONDS = 60
"""After which an interrupted process is killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Processes:
    """Starts a process for each block, and ends those that run when no more are wanted."""

    environment: Mapping[str, str]
    ends_at: float
    _running: list[subprocess.Popen[str]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _ended: threading.Event = field(default_factory=threading.Event)

    def run(self, block: SeedBlock) -> BlockResult:
        """Run a block in a process of its own. Raises `CalledProcessError` when that fails."""
        given = {**asdict(block), "most_seconds": min(block.most_seconds, self.ends_at - time.monotonic())}
        argv = [sys.executable, "-m", "tests.differential.seed_block", json.dumps(given)]
        with self._lock:
            if self._ended.is_set() or given["most_seconds"] <= 0:
                return BlockResult(run=0, cpu_seconds=0.0, found=())
            process = subprocess.Popen(argv, env=self.environment, stdout=subprocess.PIPE, text=True)  # noqa: S603
            self._running.append(process)
        answer, _ = process.communicate()
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, argv)
        result = json.loads(answer.splitlines()[-1])
        return BlockResult(**{**result, "found": tuple(Difference(**one) for one in result["found"])})

    def end(self) -> None:
        """Start no more, and end those that run with their JVMs."""
        with self._lock:
            self._ended.set()
            alive = [process for process in self._running if process.poll() is None]
        for process in alive:
            process.send_signal(signal.SIGINT)
        for process in alive:
            try:
                process.wait(_LONGEST_END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()  # its JVM ends with it: its standard input is closed then


def _run(options: argparse.Namespace, console: Console, results: list[BlockResult]) -> None:
    """Run all cases beside one stack. results: gets those of each block as it ends, so that an interrupt loses none."""
    ends_at = time.monotonic() + options.most_seconds
    until = options.seed + options.cases
    length = min(_CASES_OF_A_PROCESS, -(-options.cases // options.processes))
    blocks = [
        SeedBlock(
            first=first,
            cases=min(length, until - first),
            shrinks=not options.no_shrinking,
            most_seconds=1e9,
        )
        for first in range(options.seed, until, length)
    ]
    with tempfile.TemporaryDirectory() as folder, stack_in(Path(folder) / "data") as stack:
        stack.up(("postgres", "seaweedfs", "kafka"))
        processes = _Processes(environment={**os.environ, **stack.environment()}, ends_at=ends_at)
        with ThreadPoolExecutor(options.processes) as pool, Progress(console=console) as progress:
            task = progress.add_task("streams compared", total=options.cases)
            try:
                for future in as_completed([pool.submit(processes.run, block) for block in blocks]):
                    results.append(future.result())
                    progress.advance(task, results[-1].run)
            finally:
                processes.end()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cases and print what differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0, help="of the first case; the others follow")
    parser.add_argument("--time-zone", default="", help="of the host; the one of this process when not given")
    parser.add_argument("--processes", type=int, default=2, help="that run cases at once; each needs 3 GB of memory")
    parser.add_argument("--most-seconds", type=float, default=1e9, help="no case begins after so many seconds")
    parser.add_argument("--no-shrinking", action="store_true", help="print a difference as it was found")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    options = parser.parse_args(arguments)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # by a shell that started this in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if options.time_zone:
        os.environ["TZ"] = options.time_zone
        time.tzset()
    os.environ["PYSPARK_PYTHON"] = sys.executable  # another Python has no packages to decode values with
    zone, began = time.tzname[0], time.monotonic()
    results: list[BlockResult] = []
    is_interrupted = False
    try:
        _run(options, Console(stderr=True), results)
    except KeyboardInterrupt:
        is_interrupted = True
    found = sorted((one for result in results for one in result.found), key=lambda one: one.seed)
    seconds, run = time.monotonic() - began, sum(result.run for result in results)
    cpu_seconds = sum(result.cpu_seconds for result in results)
    summary = {"cases": run, "first_seed": options.seed, "time_zone": zone, "differences": len(found)}
    if options.json:
        times = {"seconds": seconds, "cpu_seconds": cpu_seconds}
        print(json.dumps({**summary, **times, "found": [asdict(one) for one in found]}, indent=1))  # noqa: T201
    else:
        Console().print(
            f"{run} streams from seed {options.seed}, host in {zone}, {seconds:.0f} s, {cpu_seconds:.0f} s of "
            f"processors: {len(found)} differ."
        )
    return 1 if found else 130 if is_interrupted else 0


if __name__ == "__main__":
    sys.exit(main())
