"""Random cases out of a small grammar: the same seed makes the same case."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import get_args

from tests.differential.case import (
    Case,
    Computed,
    Crash,
    Evolution,
    Join,
    Mode,
    Output,
    PartitionField,
    Shape,
    SourceKind,
    Step,
)
from tests.differential.column_kinds import KINDS
from tests.differential.random_rows import random_lookup, random_turns

from sluice.publication.crash_points import CrashPoint

_FILTERS = (
    "r.v > 0",
    "r.word IS NOT NULL",
    "r.v IS NULL OR r.v < 3",
    "r.k IS NOT NULL",
    "NOT (r.k2 = 'x') OR r.k2 IS NULL",
    "r.wall >= TIMESTAMP '2026-10-25 02:30:00'",
    "r.moment < TIMESTAMP '2026-10-25 01:00:20'",
    "r.day BETWEEN DATE '1969-12-31' AND DATE '2026-10-25'",
)

_COMPUTED = (
    Computed(kind="string", sql="upper(coalesce(r.word, '?'))"),
    Computed(kind="long", sql="r.v * 2 + 1"),
    Computed(kind="date", sql="CAST(r.moment AS DATE)"),
    Computed(kind="timestamptz", sql="date_trunc('hour', r.moment)"),
    Computed(kind="timestamptz", sql="CAST(r.wall AS TIMESTAMP_LTZ)"),
    Computed(kind="string", sql="CASE WHEN r.v > 2 THEN 'high' WHEN r.v IS NULL THEN NULL ELSE 'low' END"),
    Computed(kind="decimal(10, 2)", sql="CAST(r.d + 1 AS DECIMAL(10, 2))"),
    Computed(kind="long", sql="CAST(extract(HOUR FROM r.wall) AS BIGINT)"),
)

_DISTINCT = (("k", "word"), ("k", "moment"), ("k2", "v", "moment"), ("k", "k2", "day"))
_ROW_FILTERS = ("v > 0", "k2 IS NULL OR k2 <> 'x'", "n % 2 = 0")
_GROUP_FILTERS = ("seen > 1", "total IS NOT NULL", "newest % 2 = 0")

_BUCKETED = {"long", "int", "string", "date", "timestamp", "timestamptz", "decimal", "binary", "uuid"}
_TIMES = {"date", "timestamp", "timestamptz"}

_CRASHES = (*CrashPoint, None)


def random_case(seed: int) -> Case:
    """The case of a seed."""
    luck = random.Random(seed)  # noqa: S311  # nothing here is secret
    source: SourceKind = luck.choice(get_args(SourceKind))
    key = luck.choice(list(KINDS))
    family: Mode = luck.choice(("append", "merge", "merge", "complete"))
    step = _step(luck, family)
    is_timed = step.kind == "window" or luck.random() < 0.3
    has_rows = step.kind == "none"
    case = Case(
        seed=seed,
        source=source,
        key=key,
        delay_seconds=luck.choice((1, 10, 10, 30)) if is_timed else None,
        shape=luck.choice(get_args(Shape)) if luck.random() < 0.6 else "plain",
        where=luck.choice(_FILTERS) if luck.random() < 0.4 else "",
        join=luck.choice(get_args(Join)) if luck.random() < 0.4 else None,
        computed=luck.choice(_COMPUTED) if has_rows and luck.random() < 0.5 else None,
        step=step,
        outputs=(),
        lookup=random_lookup(luck),
        turns=random_turns(luck, key=key, turns=luck.choice((2, 2, 3))),
    )
    number = luck.choice((1, 1, 2, 3)) if family != "complete" else luck.choice((1, 1, 2))
    case = replace(case, outputs=tuple(_output(luck, case, family) for _ in range(number)))
    case = replace(case, crash=_crash(luck, case), evolution=_evolution(luck, case))
    case = replace(case, malformed=luck.choice((0, 0, 2)) if source == "kafka" else 0)
    return _with_a_later_lookup(luck, case)


def _step(luck: random.Random, family: Mode) -> Step:
    kinds = {"append": ("none", "none", "dedupe", "window"), "merge": ("none", "none", "dedupe", "group", "window")}
    match luck.choice(kinds.get(family, ("group", "window"))):
        case "dedupe":
            return Step(
                kind="dedupe",
                by=luck.choice((("k", "word"), ("k", "moment"), ("k2", "v", "moment"), ("k", "k2", "day"))),
            )
        case "group":
            return Step(kind="group", by=luck.choice((("k",), ("k2",), ("k", "k2"), ("k2", "day"))))
        case "window":
            size = luck.choice((10, 20, 7))
            slide = luck.choice((size, size, 5))
            by = luck.choice(((), ("k2",), ("k",)))
            return Step(kind="window", by=by, size_seconds=size, slide_seconds=min(slide, size))
    return Step()


def _output(luck: random.Random, case: Case, family: Mode) -> Output:
    columns = list(case.output_columns)
    filters = _ROW_FILTERS if case.step.kind == "none" else _GROUP_FILTERS
    where = luck.choice(filters) if case.step.kind != "dedupe" and luck.random() < 0.3 else ""
    partitioning = _partitioning(luck, case) if luck.random() < 0.6 else ()
    if family == "append" and case.step.kind in ("none", "dedupe") and luck.random() < 0.5:
        replaced = tuple(field for field in partitioning if field[1] != "bucket")
        if replaced:
            return Output(mode="overwrite_partitions", partitioning=replaced, where=where)
    if family != "merge":
        return Output(mode=family, partitioning=partitioning, where=where)
    if case.step.kind != "none":
        keys = tuple(name for name in columns if name in (*case.step.by, "opened"))
        return Output(mode="merge", keys=keys, partitioning=partitioning, where=where)
    keys = luck.choice((("k",), ("k2",), ("k", "k2"), ("k", "day")))
    ordering = luck.choice((("n",), ("n",), ("n",), ("moment", "n"), ("v", "n"), ("v",)))
    is_feed = luck.random() < 0.4
    return Output(mode="merge", keys=keys, ordering=ordering, is_feed=is_feed, partitioning=partitioning, where=where)


def _partitioning(luck: random.Random, case: Case) -> tuple[PartitionField, ...]:
    """One or two fields over different columns."""
    kinds = {"k": case.key, "k2": "string", "day": "date", "wall": "timestamp", "moment": "timestamptz"}
    kinds |= {"opened": "timestamptz", "v": "long", "word": "string"}
    columns = [name for name in case.output_columns if name in kinds]
    chosen = luck.sample(columns, k=min(len(columns), luck.choice((1, 1, 2))))
    return tuple(_field(luck, name, kinds[name]) for name in chosen)


def _field(luck: random.Random, name: str, kind: str) -> PartitionField:
    # The local object store refuses a folder `k=`, and so the partition of an empty text.
    is_whole = kind not in ("binary", "uuid") and (kind != "string" or name == "k2")
    transforms: list[PartitionField] = [(name, "identity", None)] if is_whole else []
    if kind in _BUCKETED:
        transforms.append((name, "bucket", luck.choice((2, 4))))
    if name == "k2":
        transforms.append((name, "truncate", 1))
    if kind in _TIMES:
        transforms += [(name, transform, None) for transform in ("day", "month", "year")]
    if kind in ("timestamp", "timestamptz"):
        transforms.append((name, "hour", None))
    return luck.choice(transforms)


def _crash(luck: random.Random, case: Case) -> Crash | None:
    if luck.random() < 0.3:
        return None
    return Crash(turn=luck.randrange(len(case.turns)), point=luck.choice(_CRASHES))


def _with_a_later_lookup(luck: random.Random, case: Case) -> Case:
    """Perhaps the same case with keys that come into the static table after the crash. Not where state is kept: a batch
    that runs again would move it by what is there then, which no batch can say."""
    crash = case.crash
    if case.join is None or crash is None or case.step.kind != "none" or luck.random() < 0.4:
        return case
    known = {row["k2"] for row in case.lookup}
    added = tuple({"k2": key, "label": "later"} for key in ("x", "y", "z") if key not in known)
    case = replace(case, lookup_added=added)
    if len(case.outputs) > 1 and luck.random() < 0.5:
        return replace(case, crash=replace(crash, point=CrashPoint.FIRST_OUTPUT_STAGED))
    return case


def _evolution(luck: random.Random, case: Case) -> Evolution | None:
    if luck.random() < 0.6:
        return None
    turn = luck.randrange(1, len(case.turns))
    if luck.random() < 0.4 and case.source.startswith("iceberg"):
        return Evolution(turn=turn, kind="source_column")
    if any(output.mode == "overwrite_partitions" for output in case.outputs):
        return None  # refused: files of the old partitioning would have to be rewritten first
    is_removed = bool(case.outputs[0].partitioning) and luck.random() < 0.5
    return Evolution(turn=turn, kind="partitioning", partitioning=() if is_removed else _partitioning(luck, case))


def kept_in_order(case: Case, *, dropped: int) -> Case:
    """A case that has lost a turn: its crash and its evolution stay with the turns that they were in, as far as they
    are still there."""
    crash, evolution = case.crash, case.evolution
    if crash is not None and crash.turn >= dropped:
        crash = replace(crash, turn=max(0, crash.turn - 1))
    if evolution is not None and evolution.turn >= dropped:
        evolution = replace(evolution, turn=evolution.turn - 1) if evolution.turn > 1 else None
    return replace(case, crash=crash, evolution=evolution)
