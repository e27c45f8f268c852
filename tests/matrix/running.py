"""Runs one combination as its job would, and compares what its output holds with what was put in."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.fixtures.workshop import Workshop
from tests.matrix.declaring import declared_parts, expected_rows, query
from tests.matrix.services import Services

from sluice.declarations.checks.combinations import Combination
from sluice_spark import sinks
from sluice_spark.run.stop_request import StopReason, StopRequest
from sluice_spark.sinks import kept_rows

UNBOUND = frozenset({"rate", "socket"})
"""Inputs for trying out: what they have brought when a bounded run looks is a matter of luck, so less is right too."""

_ADDING = frozenset({"kafka", "console", "memory", "python"})
"""Outputs that keep what every batch handed over; the others hold the newest result."""

_LONGEST_SECONDS = 120.0
"""How long records may take that go one by one; a quiet machine needs two seconds."""

_NOTING = """
import json
from pathlib import Path


def note(rows, batch):
    with (Path(__file__).parent / "noted.jsonl").open("a") as file:
        file.writelines(json.dumps(row.asDict()) + "\\n" for row in rows.collect())
"""


class WrongRowsError(Exception):
    """An output does not hold what it should."""


def name_of(combination: Combination) -> str:
    """The name of a combination's stream."""
    return f"{combination.input}_to_{combination.output}_{combination.trigger}_{combination.mode}"


def run_combination(combination: Combination, services: Services) -> None:
    """Run a combination over the words.

    Raises
    ------
    NotYetError: when a declaration of it is refused because a part is not built.
    WrongRowsError: when its output holds something else in the end.
    """
    name = name_of(combination)
    workshop = services.workshop(name)
    places = replace(services.places, target_table=workshop.table_name(name), target=name)
    if combination.input == "iceberg":
        workshop.declare_table("words", {"word": "string"})
    if combination.output in ("iceberg", "iceberg_direct"):
        workshop.declare_table(name, {"word": "string", "n": "long"})
    if combination.output == "kafka":
        services.create_topic(name)
    (workshop.folder / "noting.py").write_text(_NOTING)
    workshop.declare_stream(name, sql=query(combination), **declared_parts(combination, places))
    with _console_lines() as lines:
        _run(workshop, combination, services)
    found = sorted((row["word"], row["n"]) for row in _output(workshop, combination, services, lines))
    _require(found, combination)


def _run(workshop: Workshop, combination: Combination, services: Services) -> None:
    name = name_of(combination)
    if combination.trigger == "continuous_processing":
        stop = StopRequest()
        watch = threading.Thread(target=_stop_when_sent, args=(services, name, stop), daemon=True)
        watch.start()
        workshop.run(name, stop=stop)
        watch.join()
    elif combination.trigger in ("processing_time", "real_time"):
        workshop.run(name, stop_when=lambda batch: batch.input_rows > 0)
    else:
        workshop.run(name)


def _stop_when_sent(services: Services, topic: str, stop: StopRequest) -> None:
    """Continuous processing reports no batches, so only its topic shows when it has done its work."""
    waiting = threading.Event()
    for _ in range(round(_LONGEST_SECONDS / 0.25)):
        if len(services.records(topic)) >= 3:
            break
        waiting.wait(0.25)
    stop.make(StopReason.STOPPED)


def _output(workshop: Workshop, combination: Combination, services: Services, lines: list[str]) -> list[dict[str, Any]]:
    name = name_of(combination)
    folder = str(services.folder / "files" / name)
    match combination.output:
        case "iceberg" | "iceberg_direct":
            return workshop.rows(name)
        case "kafka":
            return services.records(name)
        case "delta" | "files" if not Path(folder).exists():
            return []  # no row came, and a batch without rows makes no folder
        case "delta" | "files":
            reader = services.spark.read.format("delta" if combination.output == "delta" else "json")
            schema = reader if combination.output == "delta" else reader.schema("word string, n long")
            return [row.asDict() for row in schema.load(folder).collect()]
        case "console":
            return [json.loads(line.partition("{")[1] + line.partition("{")[2]) for line in lines]
        case "memory":
            return [row for rows in kept_rows(name, "words").values() for row in rows]
    noted = workshop.folder / "noted.jsonl"
    return [json.loads(line) for line in noted.read_text().splitlines()] if noted.exists() else []


def _require(found: list[tuple[str, int]], combination: Combination) -> None:
    expected = expected_rows(combination)
    if combination.input == "rate":
        is_right = {word for word, _ in found} <= {"0", "1"}
    elif combination.input in UNBOUND and combination.trigger != "processing_time":
        is_right = {word for word, _ in found} <= {word for word, _ in expected}
    elif combination.input in UNBOUND:
        is_right = bool(found)
    elif combination.mode == "complete" and combination.output in _ADDING:
        # A batch without new rows hands the whole result over again: Kinesis has one when its positions moved on.
        is_right = bool(found) and found == sorted(expected * (len(found) // len(expected)))
    else:
        is_right = found == expected
    if not is_right:
        raise WrongRowsError(f"{name_of(combination)}: the output holds {found}, expected was {expected}")


@contextmanager
def _console_lines() -> Iterator[list[str]]:
    lines: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    logger, handler = logging.getLogger(sinks.__name__), Handler()
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield lines
    finally:
        logger.setLevel(before)
        logger.propagate = True
        logger.removeHandler(handler)
