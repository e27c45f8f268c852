"""Which inputs, outputs, triggers, output modes and limits of progress go together, why the others do not, which
promise less, and which this version does not have yet.

Pure. `sluice validate` judges every declaration by it, `make matrix` every combination there is. What depends on the
transformation (an aggregation without a watermark, a join without bounds) shows only in Spark's own analysis of the
plan: `sluice validate --plan`.

Source: https://spark.apache.org/docs/4.1.0/streaming/apis-on-dataframes-and-datasets.html#output-modes, and runs of
every combination on the pinned versions (`make matrix`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import product

from sluice.declarations.declaration_files import Document, KeyPath
from sluice.declarations.error_messages import key_text
from sluice.declarations.loaded_declarations import LoadedStream
from sluice.declarations.output_declaration import OutputMode
from sluice.declarations.stream_declaration import RECORD_TRIGGERS
from sluice.errors import DeclarationError, NotYetError
from sluice.messages import Location

INPUTS = ("kafka", "kinesis", "files", "iceberg", "delta", "jdbc", "socket", "rate")
# `iceberg_direct` is an Iceberg table with `delivery: direct`.
OUTPUTS = ("iceberg", "iceberg_direct", "delta", "kafka", "files", "console", "memory", "python", "hudi")
TRIGGERS = ("processing_time", "available_now", "once", "continuous_processing", "real_time")
MODES: tuple[OutputMode, ...] = ("append", "update", "complete")

SHORTEST_REAL_TIME_BATCH = timedelta(seconds=5)
"""Spark's `spark.sql.streaming.realTimeMode.minBatchDuration`."""

_MODES_OF_OUTPUTS: dict[str, tuple[frozenset[OutputMode], str]] = {
    "iceberg_direct": (
        frozenset(("append",)),
        "Iceberg's own sink adds rows, and no mark says what it replaced",
    ),
    "delta": (frozenset(("append", "complete")), "it appends rows or replaces all of them"),
    "files": (frozenset(("append",)), "a file that was written is never changed"),
}
_MODES_OF_TRIGGERS: dict[str, tuple[frozenset[OutputMode], str]] = {
    "continuous_processing": (
        frozenset(("append", "update")),
        "it keeps no result: an aggregation is refused, and with it `complete`",
    ),
    "real_time": (frozenset(("update",)), "Spark 4.1 runs it in no other"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Combination:
    """One kind of input and of output, in Spark's words the trigger and the output mode of the query between them."""

    input: str
    output: str
    trigger: str
    mode: OutputMode


def every_combination() -> Iterator[Combination]:
    """All that can be written down, allowed or not."""
    for source, output, trigger, mode in product(INPUTS, OUTPUTS, TRIGGERS, MODES):
        yield Combination(input=source, output=output, trigger=trigger, mode=mode)


def judge(combination: Combination) -> str | None:
    """Why a combination is refused; none when it is allowed."""
    source, output, trigger, mode = combination.input, combination.output, combination.trigger, combination.mode
    if source == "jdbc":
        return "a jdbc input is static: a database does not report new rows"
    if output == "hudi":
        return "hudi has no bundle for Spark 4"
    if trigger in RECORD_TRIGGERS and source != "kafka":
        return f"{trigger} reads kafka: of the other inputs Spark can hand on no record by itself"
    if trigger in RECORD_TRIGGERS and output != "kafka":
        return f"{trigger} writes kafka: there is no batch that {output} could take under its key"
    return _mode_problem("the output", output, mode, _MODES_OF_OUTPUTS) or _mode_problem(
        "the trigger", trigger, mode, _MODES_OF_TRIGGERS
    )


def _mode_problem(
    role: str, kind: str, mode: OutputMode, modes: dict[str, tuple[frozenset[OutputMode], str]]
) -> str | None:
    allowed, reason = modes.get(kind, (frozenset(MODES), ""))
    if mode in allowed:
        return None
    listed = " and ".join(f"`{one}`" for one in MODES if one in allowed)
    return f"{role} {kind} works in the output mode {listed}, got `{mode}`: {reason}"


def forbidden_combinations(stream: LoadedStream) -> Iterator[DeclarationError]:
    """What a stream combines that does not go together."""
    declaration = stream.declaration
    trigger = declaration.trigger.kind if declaration.trigger is not None else "available_now"
    sources = {name: one.declared_source.kind for name, one in declaration.inputs.items() if one.is_stream}
    reported: set[str] = set()
    for (source_name, source), (name, declared) in product(sources.items(), declaration.outputs.items()):
        reason = judge(Combination(input=source, output=declared.way, trigger=trigger, mode=declared.mode))
        if reason is not None and reason not in reported and declared.kind != "hudi":  # hudi is refused by its own line
            reported.add(reason)
            yield _problem(stream, _place(source_name, source, name, declared.kind, trigger, reason), reason)
    if trigger in RECORD_TRIGGERS:
        yield from _record_problems(stream, trigger)


def _place(source_name: str, source: str, output: str, output_kind: str, trigger: str, reason: str) -> KeyPath:
    """The key that a reason is about."""
    if reason.startswith(f"{trigger} reads"):
        return ("inputs", source_name, "stream", source)
    return ("outputs", output, output_kind)


def _record_problems(stream: LoadedStream, trigger: str) -> Iterator[DeclarationError]:
    """What else a stream without batches cannot have."""
    declaration = stream.declaration
    if len(declaration.inputs) > 1:
        yield _problem(stream, ("inputs",), f"{trigger} has one input: records of several cannot be brought together")
    if len(declaration.outputs) > 1:
        yield _problem(stream, ("outputs",), f"{trigger} has one output: each record is handed on once")
    if declaration.quarantine:
        yield _problem(stream, ("quarantine",), f"{trigger} has no batch, so that no rows can be refused into a table")
    for name, declared in declaration.inputs.items():
        if declared.watermark is not None:
            yield _problem(stream, ("inputs", name, "watermark"), f"{trigger} keeps no event time: no record is late")
    duration = declaration.trigger.real_time if declaration.trigger is not None else None
    if duration is not None and duration < SHORTEST_REAL_TIME_BATCH:
        shortest = SHORTEST_REAL_TIME_BATCH.total_seconds()
        yield _problem(
            stream,
            ("trigger", "real_time"),
            f"Spark's batches of this mode last {shortest:.0f} seconds or longer, got {duration.total_seconds():g}; "
            "records are handed on at once all the same",
        )


def _problem(stream: LoadedStream, path: KeyPath, reason: str) -> DeclarationError:
    return DeclarationError(f"`{key_text(path)}`: {reason}.", location=stream.location(path))


COUNTED = frozenset({"kafka", "iceberg"})
"""Sources whose unread rows are counted (`sluice.sources.source_heads`)."""

OBSERVED = COUNTED | {"files", "delta", "kinesis", "rate"}
"""Sources of which it is known whether anything is unread."""


def unobservable_limits(stream: LoadedStream) -> Iterator[DeclarationError]:
    """The keys of a continuous stream's supervision that could never have an effect."""
    declaration = stream.declaration
    if declaration.mode != "continuous":
        return
    kinds = sorted({declared.declared_source.kind for declared in declaration.inputs.values() if declared.is_stream})
    is_blind = declaration.trigger is not None and declaration.trigger.continuous_processing is not None
    supervision = declaration.supervision
    if supervision.on_stall == "restart" and (is_blind or not OBSERVED.intersection(kinds)):
        yield _unobservable(
            stream, ("supervision", "on_stall"), "whether the stream is stalled", kinds, is_blind=is_blind
        )
    if supervision.max_lag is not None and (is_blind or not COUNTED.issuperset(kinds)):
        yield _unobservable(stream, ("supervision", "max_lag"), "how many rows are unread", kinds, is_blind=is_blind)


def _unobservable(
    stream: LoadedStream, path: KeyPath, unknown: str, kinds: list[str], *, is_blind: bool
) -> DeclarationError:
    why = "Spark reports no batches of continuous_processing" if is_blind else f"its inputs are {', '.join(kinds)}"
    allowed = "kafka and iceberg inputs" if path[-1] == "max_lag" else "every input but a socket"
    return DeclarationError(
        f"`{key_text(path)}`: {unknown} cannot be observed, because {why}. It works for {allowed}.",
        location=stream.location(path),
    )


DIRECT_PROMISE = (
    "Iceberg's own sink shows each batch once as long as main's history keeps the snapshot of its newest batch, and "
    "as long as no driver that was suspended within a commit comes back beside its successor"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeakerPromise:
    """A key that gives something up, and what is promised instead."""

    location: Location
    sentence: str

    def __str__(self) -> str:
        return f"{self.location}: {self.sentence}"


def weaker_promises(streams: Iterable[LoadedStream]) -> Iterator[WeakerPromise]:
    """The weaker promises of valid streams, in the order of the streams."""
    for stream in streams:
        output = stream.declaration.direct_output
        if output is not None:
            path: KeyPath = ("outputs", output, "iceberg", "delivery")
            yield WeakerPromise(
                location=stream.location(path),
                sentence=f"`{key_text(path)}`: direct promises less than staged: {DIRECT_PROMISE}.",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class NotYetPart:
    """A key that a declaration may have and this version refuses, so that a declaration keeps its form when it works.

    path: the key; `*` stands for any name. reason: why it does not work. instead: what works.
    """

    path: str
    reason: str
    instead: str


NOT_YET = (
    NotYetPart(
        path="outputs.*.hudi",
        reason="no Hudi bundle exists for Spark 4",
        instead="Write into an Iceberg table.",
    ),
)


def refused_parts(document: Document) -> Iterator[NotYetError]:
    """The parts that a file asks for and that do not work, each with its line."""
    for part in NOT_YET:
        for path in _asked_for(document.content, part.path.split("."), ()):
            sentence = f"`{key_text(path)}` does not work yet: {part.reason}."
            yield NotYetError(sentence, location=document.location(path), next_step=part.instead)


def _asked_for(value: object, keys: Sequence[str], path: KeyPath) -> Iterator[KeyPath]:
    if not keys:
        if value is not None:
            yield path
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            if keys[0] in ("*", str(key)):
                yield from _asked_for(inner, keys[1:], (*path, key))
