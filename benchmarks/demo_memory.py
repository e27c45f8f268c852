"""How much memory the whole demo takes: the summed PSS of every process of its stack, sampled while it runs.

    .venv/bin/python benchmarks/demo_memory.py [--days 14] [--limit-gib 9.3]

PSS counts a page that N processes share as 1/N for each of them, so the sum counts every page once. The demo runs on a
data folder of its own, which is removed afterwards. The baseline, taken in the same run, is the idle stack before the
first driver starts. Ends with 1 when the peak is above the limit or the demo fails.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from sluice.processes.host_processes import observe_processes
from sluice.stack.folder import StackFolder
from sluice.stack.services import all_services
from sluice.stack.stack_records import stack_members

GIB = 1024**3
TEN_GB_IN_GIB = 10e9 / GIB
EVERY_SECONDS = 1.0

KINDS: Mapping[str, str] = {
    "run_stream.py": "streams",
    "run_work.py": "bounded work",
    "kafka.Kafka": "Kafka",
    "weed": "SeaweedFS",
    "postgres": "PostgreSQL",
    "airflow": "Airflow",
}
"""Words of command lines and the kinds of process that they identify; the first match counts."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One moment: seconds since the start, and the PSS in bytes by kind of process."""

    at_seconds: float
    pss_bytes: Mapping[str, int]

    @property
    def total_bytes(self) -> int:
        """All kinds together."""
        return sum(self.pss_bytes.values())


def main() -> int:
    """Run the demo, sample, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--days", type=int, default=14, help="how many days of flights the demo replays")
    parser.add_argument("--limit-gib", type=float, default=TEN_GB_IN_GIB, help="the peak that is still accepted")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sluice-memory-") as folder:
        data = Path(folder).resolve() / "data"
        environment = os.environ | {"SLUICE_DATA": str(data)}
        try:
            exit_code, samples = _sample_demo(StackFolder(data), environment, days=options.days)
        finally:
            subprocess.run([*_sluice(), "stack", "down"], env=environment, check=True)  # noqa: S603  # our own command
    if exit_code != 0 or not samples:
        return 1
    _print(samples, limit_bytes=int(options.limit_gib * GIB))
    return 0 if max(sample.total_bytes for sample in samples) <= options.limit_gib * GIB else 1


def _sluice() -> list[str]:
    return [sys.executable, "-m", "sluice.cli.app"]


def _sample_demo(folder: StackFolder, environment: Mapping[str, str], *, days: int) -> tuple[int, list[Sample]]:
    samples = []
    began = time.monotonic()
    with subprocess.Popen([*_sluice(), "demo", "--days", str(days)], env=environment) as demo:  # noqa: S603  # as above
        while True:
            samples.append(Sample(time.monotonic() - began, _pss_by_kind(folder, demo.pid)))
            try:
                return demo.wait(timeout=EVERY_SECONDS), samples
            except subprocess.TimeoutExpired:
                continue


def _pss_by_kind(folder: StackFolder, demo_pid: int) -> Mapping[str, int]:
    pss: dict[str, int] = defaultdict(int)
    members = stack_members(folder, everything=observe_processes(), services=all_services().values())
    for pid in {*members, demo_pid}:
        kind = "the demo itself" if pid == demo_pid else _kind(pid)
        pss[kind] += _pss_bytes(pid)
    return pss


def _kind(pid: int) -> str:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:  # it has ended meanwhile
        return "other"
    return next((kind for word, kind in KINDS.items() if word in command), "other")


def _pss_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:  # it has ended meanwhile
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def _print(samples: list[Sample], *, limit_bytes: int) -> None:
    peak = max(samples, key=lambda sample: sample.total_bytes)
    before_drivers = [sample for sample in samples if not sample.pss_bytes.get("streams")]
    idle = before_drivers[-1] if before_drivers else samples[0]
    table = Table(title="Summed PSS in GiB", title_justify="left", box=None, padding=(0, 2, 0, 0))
    table.add_column("processes")
    table.add_column(f"idle stack ({idle.at_seconds:.0f} s)", justify="right")
    table.add_column(f"peak ({peak.at_seconds:.0f} s)", justify="right")
    for kind in sorted({*idle.pss_bytes, *peak.pss_bytes}, key=lambda kind: -peak.pss_bytes.get(kind, 0)):
        figures = (sample.pss_bytes.get(kind, 0) / GIB for sample in (idle, peak))
        table.add_row(kind, *(f"{figure:.2f}" for figure in figures))
    table.add_row("all", f"{idle.total_bytes / GIB:.2f}", f"{peak.total_bytes / GIB:.2f}", style="bold")
    console = Console()
    console.print(table)
    console.print(f"{len(samples)} samples; the limit is {limit_bytes / GIB:.2f} GiB.")


if __name__ == "__main__":
    sys.exit(main())
