"""The plan of a replay: the records to send, computed from a seed and a span of days only.

The plan contains the irregularities of a real source, each bounded and counted:
- **disorder**: one record in ten arrives up to two hours of event time late;
- **duplicates**: a record is sent again, up to an hour after the first time;
- **malformed** records: damaged copies of a flight, sent beside the good one: cut off, a key lost, or a wrong type;
- the **late set**: a few flights held back until the watermark of `silver_flights` has passed them by hours. They must
  appear as dropped late, and the verification leaves them out.

Every choice is a hash of the seed, the flight and the kind of choice, so the same plan can be recomputed at any time.
How a record is damaged depends on the flight alone.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from sluice.demo.flights_data import Flight, Span
from sluice.errors import UsageError

MAX_DISORDER = timedelta(hours=2)
MAX_REPEAT_DELAY = timedelta(hours=1)
MIN_LATENESS = timedelta(days=1)
"""How far behind the newest flight a flight of the late set is. Four times the watermark delay of silver_flights
(6 hours), so that no detail of how Spark moves a watermark can let one through."""

_DISORDER_SHARE = 0.10
_DUPLICATE_SHARE = 0.02
_MALFORMED_SHARE = 0.005
_LATE_SHARE = 0.001


class RecordKind(StrEnum):
    """The kind of a record."""

    FLIGHT = "flight"
    DUPLICATE = "duplicate"
    TRUNCATED = "truncated"
    MISSING_KEY = "missing_key"
    WRONG_TYPE = "wrong_type"
    LATE = "late"


MALFORMED_KINDS = frozenset({RecordKind.TRUNCATED, RecordKind.MISSING_KEY, RecordKind.WRONG_TYPE})
"""The kinds that must end up in the quarantine."""

_FIELDS = tuple(field.name for field in fields(Flight))
_KEYS_TO_LOSE = ("time_hour", "carrier", "flight")
_TYPES_TO_BREAK: Mapping[str, Any] = {"flight": "seven", "dep_delay": "a while", "time_hour": {"hour": "noon"}}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRecord:
    """One record to send.

    sequence: its position in the plan, from 0; records are sent in this order.
    clock: the event time at which it is sent. It never falls within a plan, apart from the late set at the end.
    """

    sequence: int
    kind: RecordKind
    flight: Flight
    clock: datetime

    @property
    def key(self) -> str:
        """The key of the Kafka record, which decides its partition."""
        return f"{self.flight.carrier}-{self.flight.flight}"

    @property
    def value(self) -> str:
        """The JSON of the Kafka record, damaged according to its kind."""
        fields = _json_fields(self.flight)
        if self.kind is RecordKind.MISSING_KEY:
            del fields[_pick(self.flight, "lost key", _KEYS_TO_LOSE)]
        if self.kind is RecordKind.WRONG_TYPE:
            broken = _pick(self.flight, "broken type", tuple(_TYPES_TO_BREAK))
            fields[broken] = _TYPES_TO_BREAK[broken]
        text = json.dumps(fields, separators=(",", ":"))
        if self.kind is RecordKind.TRUNCATED:
            return text[: len(text) // 4 + int(_draw("cut", self.flight) * len(text) / 2)]
        return text


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPlan:
    """All records of one span, in the order of sending: first the on-time records, then the late set."""

    seed: int
    span: Span
    records: tuple[PlannedRecord, ...]

    @property
    def name(self) -> str:
        """The name of the plan; `parse_plan_name` and `plan_replay` recompute the plan from it."""
        return f"{self.seed}/{self.span.first_day}/{self.span.days}"

    @property
    def on_time(self) -> tuple[PlannedRecord, ...]:
        """The records that are sent as the clock runs."""
        return tuple(record for record in self.records if record.kind is not RecordKind.LATE)

    @property
    def late_set(self) -> tuple[PlannedRecord, ...]:
        """The records that are sent when the watermark has passed them."""
        return tuple(record for record in self.records if record.kind is RecordKind.LATE)

    @property
    def counts(self) -> Mapping[RecordKind, int]:
        """How many records of each kind are sent."""
        counted = Counter(record.kind for record in self.records)
        return {kind: counted[kind] for kind in RecordKind}


def parse_plan_name(name: str) -> tuple[int, Span]:
    """The seed and the span of a plan, read from its name.

    Raises
    ------
    ValueError: when the text is not the name of a plan.
    """
    seed, first_day, days = name.split("/")
    return int(seed), Span(first_day=datetime.fromisoformat(first_day).date(), days=int(days))


def plan_replay(flights: Sequence[Flight], *, span: Span, seed: int) -> ReplayPlan:
    """Plan the records for the flights of a span.

    Parameters
    ----------
    flights: the flights that departed within the span, in order of departure.
    span: the days; at least two, because the late set is more than a day late.
    seed: decides every choice.

    Raises
    ------
    UsageError: when the span is too short.
    """
    if span.days < 2:
        raise UsageError(
            f"A replay of {span.days} day is too short for flights that are a day late.", next_step="Ask for --days 2."
        )
    late = _choose_late_set(flights, seed=seed)
    held_back = {flight.identity for flight in late}
    arrivals = sorted(
        (arrival for flight in flights if flight.identity not in held_back for arrival in _arrivals(flight, seed)),
        key=lambda arrival: (arrival[0], arrival[2].identity, arrival[1]),
    )
    ends_at = max(clock for clock, _, _ in arrivals)
    everything = [*arrivals, *((ends_at, RecordKind.LATE, flight) for flight in late)]
    return ReplayPlan(
        seed=seed,
        span=span,
        records=tuple(
            PlannedRecord(sequence=sequence, kind=kind, flight=flight, clock=clock)
            for sequence, (clock, kind, flight) in enumerate(everything)
        ),
    )


def _choose_late_set(flights: Sequence[Flight], *, seed: int) -> list[Flight]:
    """At least one flight, of those that departed long enough before the newest one."""
    newest = flights[-1].departure
    candidates = [flight for flight in flights if flight.departure < newest - MIN_LATENESS - MAX_DISORDER]
    in_random_order = sorted(candidates, key=lambda flight: _draw("late", flight, seed=seed))
    chosen = in_random_order[: max(1, round(len(candidates) * _LATE_SHARE))]
    return sorted(chosen, key=lambda flight: (flight.departure, flight.identity))


def _arrivals(flight: Flight, seed: int) -> Iterable[tuple[datetime, RecordKind, Flight]]:
    """The records of one flight that is on time: itself, and perhaps a repetition or a damaged copy."""
    clock = flight.departure
    if _draw("disorder", flight, seed=seed) < _DISORDER_SHARE:
        clock += MAX_DISORDER * _draw("disorder of", flight, seed=seed)
    yield clock, RecordKind.FLIGHT, flight
    if _draw("duplicate", flight, seed=seed) < _DUPLICATE_SHARE:
        yield clock + MAX_REPEAT_DELAY * _draw("duplicate after", flight, seed=seed), RecordKind.DUPLICATE, flight
    if _draw("malformed", flight, seed=seed) < _MALFORMED_SHARE:
        kinds = sorted(MALFORMED_KINDS)
        yield clock, kinds[int(_draw("malformed how", flight, seed=seed) * len(kinds))], flight


def _json_fields(flight: Flight) -> dict[str, Any]:
    values = {name: getattr(flight, name) for name in _FIELDS}
    return values | {"time_hour": f"{flight.time_hour:%Y-%m-%dT%H:%M:%SZ}"}


def _pick(flight: Flight, choice: str, among: Sequence[str]) -> str:
    return among[int(_draw(choice, flight) * len(among))]


def _draw(choice: str, flight: Flight, *, seed: int = 0) -> float:
    """A number in [0, 1) that depends on the seed, the choice and the flight only."""
    digest = hashlib.blake2b(f"{seed}|{choice}|{flight.identity}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64
