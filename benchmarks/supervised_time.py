"""A supervised stream beside the same stream written by hand, by turns on one stack and in one Spark.

    .venv/bin/python -m benchmarks.supervised_time [--pairs 5] [--rows 100000] [--small-batches 40] [--snapshots 150]

By hand: PySpark and Iceberg's own streaming sink (`toTable`). Supervised: the declared stream with everything that its
driver has beside the query: lease, heartbeat, progress and batches in the ledger. Both read the same records of Kafka
into tables of the same history. *Throughput* is taken from large batches, over all the time from trigger to trigger;
*trigger time* from small ones. Each pair is run back to back, in changing order, and what the two tables hold is
compared before any time counts; the first batch of a run is a warm-up and does not count.

Prints the limits beside what was measured. Ends with 1 when two tables differ, or a limit is missed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.delivery_time import Bench, fill_topic
from benchmarks.paired_turns import Turn
from rich.console import Console
from rich.table import Table
from tests.fixtures.spark_submit import submit_arguments
from tests.fixtures.stack import stack_in

from sluice.declarations.run_declaration import StateDeclaration
from sluice.errors import NotYetError
from sluice.ledger.connection import open_ledger
from sluice_spark.session.session import open_session

LEAST_THROUGHPUT_RATIO = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A way of delivering, in the words of a declaration, and by how much its trigger may be slower."""

    name: str
    output: Mapping[str, Any]
    most_added_ms: float


CASES = (
    Case(name="staged", output={}, most_added_ms=150.0),
    Case(name="direct", output={"delivery": "direct"}, most_added_ms=10.0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The same stream by hand and supervised, one right after the other."""

    by_hand: Turn
    supervised: Turn

    @property
    def throughput_ratio(self) -> float:
        """How much as fast the supervised one is: 1.0 is equal, more is faster."""
        return self.by_hand.busy_seconds / self.supervised.busy_seconds

    @property
    def added_ms(self) -> float:
        """By how much the median trigger of the supervised one is longer."""
        return statistics.median(self.supervised.batches_ms) - statistics.median(self.by_hand.batches_ms)

    @property
    def is_equal(self) -> bool:
        """Whether both tables hold the same rows."""
        return self.by_hand.content == self.supervised.content


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    """What was measured of a case: pairs of large batches, and pairs of small ones."""

    case: Case
    large: Sequence[Pair]
    small: Sequence[Pair]

    @property
    def throughput_ratio(self) -> float:
        """The median over the pairs."""
        return statistics.median(pair.throughput_ratio for pair in self.large)

    @property
    def added_ms(self) -> float:
        """The median over the pairs."""
        return statistics.median(pair.added_ms for pair in self.small)

    @property
    def is_equal(self) -> bool:
        """Whether the tables of every pair hold the same rows."""
        return all(pair.is_equal for pair in (*self.large, *self.small))

    @property
    def is_within_limits(self) -> bool:
        """Whether both figures keep their limit."""
        return self.throughput_ratio >= LEAST_THROUGHPUT_RATIO and self.added_ms <= self.case.most_added_ms


def take_pairs(by_hand: Callable[[], Turn], supervised: Callable[[], Turn], *, pairs: int, what: str) -> list[Pair]:
    """Run both so often, one right after the other, each of them first in every other pair."""
    found = []
    for number in range(pairs):
        if number % 2:
            second = supervised()
            first = by_hand()
        else:
            first = by_hand()
            second = supervised()
        found.append(Pair(by_hand=first, supervised=second))
        sys.stderr.write(
            f"{what}, pair {number + 1} of {pairs}: {first.busy_seconds:.1f} s by hand, "
            f"{second.busy_seconds:.1f} s supervised, median trigger {found[-1].added_ms:+.0f} ms\n"
        )
    return found


def measure(case: Case, large: Bench, small: Bench, *, pairs: int, snapshots: int) -> CaseResult:
    """Both figures of one case.

    Parameters
    ----------
    large, small: with the topics of large and of small batches.
    snapshots: how many snapshots the tables of the small batches have before.
    """
    return CaseResult(
        case=case,
        large=take_pairs(
            large.by_hand,
            lambda: large.by_sluice(is_supervised=True, **case.output),
            pairs=pairs,
            what=f"{case.name}, large batches",
        ),
        small=take_pairs(
            lambda: small.by_hand(history=snapshots),
            lambda: small.by_sluice(history=snapshots, is_supervised=True, **case.output),
            pairs=pairs,
            what=f"{case.name}, small batches",
        ),
    )


def print_results(results: Sequence[CaseResult], not_yet: Mapping[str, str], *, title: str) -> None:
    """Print a row for each case."""
    table = Table(title=title)
    for heading in ("delivery", "throughput", "at least", "trigger by hand", "supervised", "longer by", "at most", ""):
        table.add_column(heading, justify="left" if heading in {"delivery", ""} else "right")
    for result in results:
        verdict = "within" if result.is_within_limits else "MISSED"
        table.add_row(
            result.case.name,
            f"{result.throughput_ratio:.3f}x",
            f"{LEAST_THROUGHPUT_RATIO:.2f}x",
            f"{_median_ms([pair.by_hand for pair in result.small]):.0f} ms",
            f"{_median_ms([pair.supervised for pair in result.small]):.0f} ms",
            f"{result.added_ms:+.0f} ms",
            f"+{result.case.most_added_ms:.0f} ms",
            verdict if result.is_equal else "THE TABLES DIFFER",
        )
    for name, why in not_yet.items():
        table.add_row(name, *([""] * 6), f"not yet: {why}")
    Console(width=140).print(table)


def _median_ms(turns: Sequence[Turn]) -> float:
    return statistics.median([time_ms for turn in turns for time_ms in turn.batches_ms])


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure every case and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--rows", type=int, default=100_000, help="rows of a large batch")
    parser.add_argument("--batches", type=int, default=5, help="large batches of a run")
    parser.add_argument("--small-rows", type=int, default=1_000, help="rows of a small batch")
    parser.add_argument("--small-batches", type=int, default=40, help="small batches of a run")
    parser.add_argument("--snapshots", type=int, default=150, help="snapshots before the small batches come")
    parser.add_argument("--only", choices=[case.name for case in CASES])
    options = parser.parse_args(arguments)
    results: list[CaseResult] = []
    not_yet: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder, stack_in(Path(folder) / "data") as stack:
        stack.up(("postgres", "seaweedfs", "kafka"))
        settings = stack.settings()
        os.environ["PYSPARK_SUBMIT_ARGS"] = submit_arguments(settings, is_bounded=False)
        spark = open_session(settings, name="benchmark", state=StateDeclaration(), names_call_sites=False)
        with open_ledger(settings.ledger_url.get_secret_value()) as ledger:
            large = Bench(
                spark=spark,
                stack=stack,
                ledger=ledger,
                folder=Path(folder),
                topic=fill_topic(stack, rows=options.rows * options.batches),
                rows=options.rows,
                batches=options.batches,
            )
            topic = fill_topic(stack, rows=options.small_rows * options.small_batches)
            small = replace(large, topic=topic, rows=options.small_rows, batches=options.small_batches)
            for case in CASES:
                if options.only in (None, case.name):
                    try:
                        results.append(measure(case, large, small, pairs=options.pairs, snapshots=options.snapshots))
                    except NotYetError as error:
                        not_yet[case.name] = error.message
        spark.stop()
    title = f"{options.pairs} pairs; {options.small_rows} rows a small batch, {options.snapshots} snapshots before it"
    print_results(results, not_yet, title=title)
    return 0 if all(result.is_equal and result.is_within_limits for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
