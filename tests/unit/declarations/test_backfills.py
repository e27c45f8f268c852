"""The key `backfill`: what is refused, each with its line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sluice.backfill.intervals import followers_of, parse_interval
from sluice.backfill.observe_backfill import backfill_of
from sluice.errors import UsageError

if TYPE_CHECKING:
    from tests.unit.declarations.conftest import Folder

S = "silver_flights.stream.yaml"
BACKFILL = "quarantine: true\nbackfill:\n  column: departure\n"

WATERMARK = "    watermark: {column: departure, delay: 6 hours}"
FILES = "{connection: landing, format: json, columns: [{name: carrier, type: string}], afterwards: delete}"
KEPT = FILES.replace(", afterwards: delete", "")
MORE = "\n  more: {stream: {files: " + KEPT.replace("format", "path: more, format") + "}}"


def problems(folder: Folder, *changes: tuple[str, str], backfill: str = BACKFILL) -> list[str]:
    """The problems of the valid stream with a backfill and some changes."""
    folder.write_valid()
    text = (folder.path / S).read_text().replace("quarantine: true\n", backfill)
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    folder.write(S, text)
    return folder.problems()


@pytest.mark.parametrize("reads", ["", "  reads: {flights: departure}\n"], ids=["whole", "by a column"])
def test_a_backfill_of_a_table_by_its_event_time_is_valid(folder: Folder, reads: str) -> None:
    more = f"  interval: month\n{reads}  margin: 6 hours\n  at_once: 4\n  balance: rows\n"

    assert problems(folder, backfill=BACKFILL + more) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            [("column: departure\n", "column: departed\n")],
            f"{S}:21: `backfill.column`: silver.flights has no column departed; it has carrier, departure, legs. "
            "Did you mean `departure`?",
        ),
        (
            [("column: departure\n", "column: carrier\n")],
            f"{S}:21: `backfill.column`: an interval is one of date, timestamp, timestamptz, and carrier is a string.",
        ),
        (
            [("column: departure\n", "column: departure\n  reads: {airlines: carrier}\n")],
            f"{S}:22: `backfill.reads.airlines`: airlines is static, and a static input is read whole.",
        ),
        (
            [("column: departure\n", "column: departure\n  follows: [flights]\n")],
            f"{S}:22: `backfill.follows[0]`: the intervals that follow those of flights are found by its column, which "
            "`reads` does not name. Write `reads: {flights: …}` too.",
        ),
        (
            [("mode: append", "mode: merge, keys: [carrier]")],
            f"{S}:21: `backfill.column`: a merged row belongs to one interval only when its key says which: departure "
            "is not one of the keys carrier.",
        ),
        (
            [
                ("mode: append", "mode: overwrite_partitions"),
                ("column: departure\n", "column: departure\n  interval: hour\n"),
            ],
            f"{S}:18: `outputs.main.iceberg.mode`: a batch of the stream replaces whole partitions of silver.flights, "
            "and none of them holds rows of one hour of departure alone. Partition silver.flights by the hour of "
            "departure, or choose a longer interval.",
        ),
        (
            [(f"iceberg: {{table: bronze.flights}}\n{WATERMARK}", "files: " + FILES)],
            f"{S}:9: `inputs.flights.stream.files.afterwards`: `backfill` does not work with this yet: a backfill "
            "reads the files again that the stream has read, and they are not kept. Write `keep`.",
        ),
        (
            [
                (f"iceberg: {{table: bronze.flights}}\n{WATERMARK}", "files: " + KEPT + MORE),
            ],
            f"{S}:10: `inputs.more.stream.files`: `backfill` does not work with this yet: a backfill of two inputs "
            "of files: the checkpoint does not name the input of a file. Keep the records in a table of their own and "
            "backfill the stream that reads it.",
        ),
        (
            [
                (f"iceberg: {{table: bronze.flights}}\n{WATERMARK}", "kafka: {connection: k, topics: [t]}"),
                ("column: departure\n", "column: departure\n  reads: {flights: at}\n"),
            ],
            f"{S}:21: `backfill.reads.flights`: the input flights has no column at; it has timestamp.",
        ),
        (
            [
                (f"iceberg: {{table: bronze.flights}}\n{WATERMARK}", "files: " + KEPT),
                ("column: departure\n", "column: departure\n  reads: {flights: carrier}\n  follows: [flights]\n"),
            ],
            f"{S}:22: `backfill.follows[0]`: flights is no Iceberg table, and no stream replaces intervals of it. "
            "Leave it out.",
        ),
        (
            [("iceberg: {table: bronze.flights}\n    watermark: {column: departure, delay: 6 hours}", "rate: {}")],
            f"{S}:9: `inputs.flights.stream.rate`: `backfill` does not work with this yet: a backfill reads Iceberg "
            "tables, Kafka and files, not rate. Keep the records in a table of their own and backfill the stream that "
            "reads it.",
        ),
    ],
)
def test_what_cannot_be_exact_is_refused_with_its_line(
    folder: Folder, changes: list[tuple[str, str]], expected: str
) -> None:
    assert expected in problems(folder, *changes)


MAIN = "    iceberg: {table: silver.flights, mode: append}"
SECOND = MAIN + "\n  second:\n    console: {}"


@pytest.mark.parametrize(
    ("outputs", "key", "why", "instead"),
    [
        (
            SECOND,
            "16: `outputs`",
            "a backfill replaces the rows of one output, and there are main, second",
            "Make several streams of it, one for each output.",
        ),
        (
            MAIN.replace("append", "complete"),
            "18: `outputs.main.iceberg.mode`",
            "a backfill of mode complete: the next batch of the stream replaces the interval again",
            "Leave `backfill` out. `sluice stream reset silver_flights --dry-run` shows how the whole table is "
            "computed again.",
        ),
        (
            MAIN.replace("append", "merge, keys: [carrier], operation_column: op, ordering_column: departure"),
            "18: `outputs.main.iceberg.operation_column`",
            "a backfill of a change feed: the rows of an interval depend on changes before it",
            "Leave `backfill` out. `sluice stream refresh silver_flights` builds the whole table again.",
        ),
        (
            MAIN.replace("append", "append, delivery: direct"),
            "18: `outputs.main.iceberg.delivery`",
            "a backfill of this output: with delivery `direct` the table does not say how far its sources were read",
            "Write `staged`.",
        ),
        (
            "    console: {}",
            "18: `outputs.main.console`",
            "a backfill replaces rows of an Iceberg table, not of console",
            "Leave `backfill` out.",
        ),
    ],
    ids=["several outputs", "complete", "a change feed", "direct", "no table"],
)
def test_an_output_that_no_backfill_handles_yet_is_refused_with_a_way_out(
    folder: Folder, outputs: str, key: str, why: str, instead: str
) -> None:
    """With the key and its line, also for a stream that declares no backfill: declaring one would be no way out."""
    alone = BACKFILL.removeprefix("quarantine: true\n")
    found = problems(folder, (MAIN, outputs), backfill=alone)
    assert f"{S}:{key}: `backfill` does not work with this yet: {why}. {instead}" in found

    problems(folder, (MAIN, outputs), backfill="")
    with pytest.raises(UsageError) as refused:
        backfill_of(folder.load().streams["silver_flights"])
    assert refused.value.message == f"silver_flights cannot be backfilled yet: {why}."
    assert refused.value.next_step == instead


def test_a_stream_that_could_be_backfilled_is_asked_to_declare_it(folder: Folder) -> None:
    problems(folder, backfill="")
    with pytest.raises(UsageError, match="its declaration has no key `backfill`") as refused:
        backfill_of(folder.load().stream("silver_flights"))
    assert refused.value.next_step == f"Declare `backfill: {{column: …}}` in {S}."


GOLD = """\
stream: gold_flights
description: flights again
owner: flights
mode: continuous
trigger: {processing_time: 2 seconds}
inputs:
  flights:
    stream:
      iceberg: {table: silver.flights, on_overwrite: skip}
transformation:
  sql: gold_flights.sql
outputs:
  main:
    iceberg: {table: gold.flights, mode: append}
backfill:
  column: departure
  reads: {flights: departure}
  follows: [flights]
"""


def problems_of_gold(folder: Folder, *, silver: str, gold: str = GOLD) -> list[str]:
    """The problems of a stream that follows the backfills of another one."""
    folder.write_valid()
    folder.write(S, (folder.path / S).read_text() + silver)
    folder.write("gold_flights.stream.yaml", gold)
    folder.write("gold_flights.sql", "SELECT * FROM flights")
    folder.write(
        "gold.flights.table.yaml", (folder.path / "silver.flights.table.yaml").read_text().replace("silver", "gold")
    )
    return folder.problems()


@pytest.mark.parametrize(
    ("silver", "gold", "expected"),
    [
        ("backfill: {column: departure}\n", GOLD, []),
        ("backfill: {column: departure, interval: month}\n", GOLD, []),
        (
            "",
            GOLD,
            [
                "gold_flights.stream.yaml:18: `backfill.follows[0]`: silver_flights, which writes the table of "
                f"flights, declares no backfill that could be followed. Declare `backfill` in {S}."
            ],
        ),
        (
            "backfill: {column: departure, interval: hour}\n",
            GOLD,
            [
                "gold_flights.stream.yaml:18: `backfill.follows[0]`: this stream is backfilled by the day, "
                "silver_flights by the hour. Write `interval: hour` or a shorter one."
            ],
        ),
        (
            "backfill: {column: arrival}\n",
            GOLD,
            [
                "gold_flights.stream.yaml:18: `backfill.follows[0]`: silver_flights replaces intervals of arrival, and "
                "`reads` names departure for flights. Name the same column in both."
            ],
        ),
    ],
    ids=["the same", "a part of one", "no backfill", "a shorter one", "another column"],
)
def test_a_stream_follows_backfills_of_the_same_column(
    folder: Folder, silver: str, gold: str, expected: list[str]
) -> None:
    assert [one for one in problems_of_gold(folder, silver=silver, gold=gold) if "follows" in one] == expected


def test_followers_are_found_in_order_with_whole_intervals(folder: Folder) -> None:
    assert problems_of_gold(folder, silver="backfill: {column: departure, interval: day}\n") == []
    last = GOLD.replace("gold", "last").replace("silver", "gold").replace("follows", "margin: 1 hour\n  follows")
    folder.write("last_flights.stream.yaml", last)
    folder.write("last_flights.sql", "SELECT * FROM flights")
    folder.write(
        "last.flights.table.yaml", (folder.path / "gold.flights.table.yaml").read_text().replace("gold", "last")
    )
    declarations = folder.load()
    assert [str(one) for one in declarations.problems] == []

    followers = followers_of(
        declarations, declarations.stream("silver_flights"), parse_interval("2013-01-05", "2013-01-06")
    )

    assert [(one.stream.name, str(one.interval)) for one in followers] == [
        ("gold_flights", "20130105T0000-20130106T0000"),
        ("last_flights", "20130104T0000-20130107T0000"),
    ]
    assert followers_of(declarations, followers[1].stream, followers[1].interval) == ()
