"""Runs the cases of some seeds in a process and a JVM of their own, which end with them: Spark keeps some megabytes of
every stream that a session has run.

    python -m tests.differential.seed_block '{"first": 0, "cases": 100, "shrinks": true, "most_seconds": 600}'

The settings of the services come from the environment. Prints one JSON object at the end, and each difference on
standard error at once.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from uuid import uuid4

import psutil
from rich.console import Console
from tests.differential.case import Case
from tests.differential.case_run import differences
from tests.differential.grammar import random_case
from tests.differential.report import reproduction
from tests.differential.shrinking import shrunk
from tests.fixtures.spark_submit import SMALL_PAGES, submit_arguments
from tests.fixtures.workshop import Workshop

from sluice.declarations.run_declaration import StateDeclaration
from sluice.ledger.connection import open_ledger
from sluice.settings import load_settings
from sluice_spark.session.session import open_session

_LONGEST_SHRINKING_SECONDS = 300
"""For one difference: about a hundred smaller cases."""

_HEAP_GIB = 2
"""Enough for some hundred cases in one session."""

_JAVA_OPTIONS = (
    "-XX:-UseCodeCacheFlushing",
    "-XX:ReservedCodeCacheSize=512m",
    "-Xms2g",
    "-Xmn1200m",
    "-XX:MetaspaceSize=512m",
)
"""Each case runs little of its code often enough to stay compiled: by default half of what was compiled was discarded
and compiled again. The heap and the space of the classes begin where they end, so that no full collection makes them
grow. More than half of the heap is for young objects, since a case leaves little: collections then take half the time.
"""

NewWorkshop = Callable[[], Workshop]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A case that is wrong. text: its smallest form, as somebody can repeat it."""

    seed: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedBlock:
    """Cases of seeds that follow each other. most_seconds: no case begins after so many."""

    first: int
    cases: int
    shrinks: bool
    most_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockResult:
    """What came of a block. run: how many cases. cpu_seconds: of Python and its JVM, their start included."""

    run: int
    cpu_seconds: float
    found: tuple[Difference, ...]


def run_block(block: SeedBlock) -> BlockResult:
    """Run the cases of a block, one after the other."""
    console, began = Console(stderr=True), time.monotonic()
    found: list[Difference] = []
    run = 0
    with _workshops() as new_workshop:
        for seed in range(block.first, block.first + block.cases):
            if time.monotonic() - began > block.most_seconds:
                break
            run += 1
            if (difference := _found_in(new_workshop, random_case(seed), shrinks=block.shrinks)) is not None:
                found.append(difference)
                console.print(difference.text, soft_wrap=True, markup=False, highlight=False)
        cpu_seconds = _cpu_seconds()
    return BlockResult(run=run, cpu_seconds=cpu_seconds, found=tuple(found))


@contextmanager
def _workshops() -> Iterator[NewWorkshop]:
    """A session, for as long as the block lasts, and workshops in it. Each has its own tables and checkpoints."""
    gc.freeze()
    settings = load_settings()
    submitted = submit_arguments(settings, memory_gib=_HEAP_GIB, java_options=_JAVA_OPTIONS, conf=SMALL_PAGES)
    os.environ["PYSPARK_SUBMIT_ARGS"] = submitted
    with (
        tempfile.TemporaryDirectory() as folder,
        open_ledger(settings.ledger_url.get_secret_value()) as ledger,
    ):
        spark = open_session(
            settings, name="differential", state=StateDeclaration(), deletes_files=False, names_call_sites=False
        )

        def new_workshop() -> Workshop:
            namespace = f"n{uuid4().hex[:12]}"
            pipelines = Path(folder) / namespace / "pipelines"
            pipelines.mkdir(parents=True)
            checkpoints = (Path(folder) / namespace / "checkpoints").as_uri()
            own = settings.model_copy(update={"pipelines": pipelines, "checkpoints": checkpoints})
            return Workshop(spark=spark, settings=own, ledger=ledger, namespace=namespace)

        try:
            yield new_workshop
        finally:
            spark.stop()


def _wrong_of(new_workshop: NewWorkshop, case: Case) -> list[str]:
    """Run a case in a workshop of its own; what differs. An error that nothing asked for is a difference too."""
    try:
        return differences(new_workshop(), case)
    except Exception:  # noqa: BLE001  # what a case raises is one finding; the others are run all the same
        return [f"raised: {traceback.format_exc(limit=-4)}"]


def _found_in(new_workshop: NewWorkshop, case: Case, *, shrinks: bool) -> Difference | None:
    """Run a case, and make it smaller when it differs; none when it is right."""
    wrong = _wrong_of(new_workshop, case)
    if not wrong:
        return None
    if shrinks:
        kind = _kind_of(wrong)
        case = shrunk(
            case,
            lambda smaller: _kind_of(_wrong_of(new_workshop, smaller)) == kind,
            most_seconds=_LONGEST_SHRINKING_SECONDS,
        )
        wrong = _wrong_of(new_workshop, case) or wrong
    return Difference(seed=case.seed, text=reproduction(case, wrong))


def _kind_of(wrong: Sequence[str]) -> str:
    """Whether something was raised or is different, so that no other mistake is found while a case is made smaller."""
    return "" if not wrong else "raised" if wrong[0].startswith("raised") else "differs"


def _cpu_seconds() -> float:
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def main() -> int:
    """Run a block and print its result."""
    result = run_block(SeedBlock(**json.loads(sys.argv[1])))
    print(json.dumps(asdict(result)))  # noqa: T201  # the answer of the program
    return 0


if __name__ == "__main__":
    sys.exit(main())
