"""What an expression of a plan makes of the times of the inputs: a window, a shift, a truncation, or the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import reduce
from typing import TYPE_CHECKING

from sluice.backfill.reach import SAME, TimeReach, shifted, truncated, window_end, window_start
from sluice_spark.query.logical_plan import python_list

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject

_WINDOW, _SESSION = "spark.timeWindow", "spark.sessionWindow"
"""What Spark writes into the metadata of a column."""

_UNCHANGED = frozenset({"Alias", "KnownNullable", "KnownNotNull", "PreciseTimestampConversion", "DatetimeSub"})
_LENGTHS: Mapping[str, TimeReach] = {name: truncated(name) for name in ("hour", "day", "month")}
_A_DAY = timedelta(days=1)
Times = Mapping[str, TimeReach]
"""By input, how a value follows from the times of its rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """What is known of a column: its times, or those of the start and of the end of a window."""

    times: Times = field(default_factory=dict)
    ends: Times | None = None

    @property
    def is_window(self) -> bool:
        """Whether it is a window, with a start and an end."""
        return self.ends is not None


@dataclass(slots=True, kw_only=True)
class ExpressionTimes:
    """Follows times through expressions. problem: why a reach is not known; the first one. gap: the longest of a
    session."""

    problem: str = ""
    gap: timedelta = timedelta(0)

    def fail(self, problem: str) -> None:
        """Say why a reach is not known."""
        self.problem = self.problem or problem

    def named(self, expressions: list[JavaObject], known: Mapping[int, Column]) -> dict[int, Column]:
        """The columns that a step makes, by their ids; without those that cannot be followed."""
        found = {one.exprId().id(): self.column_of(one, known) for one in expressions}
        return {key: column for key, column in found.items() if column is not None}

    def expanded(self, plan: JavaObject, known: Mapping[int, Column]) -> dict[int, Column]:
        """The same of a step that makes several rows of each."""
        projections = [python_list(one) for one in python_list(plan.projections())]
        found = {
            attribute.exprId().id(): one_of([self.column_of(of_one[place], known, attribute) for of_one in projections])
            for place, attribute in enumerate(python_list(plan.output()))
        }
        return {key: column for key, column in found.items() if column is not None}

    def column_of(
        self, expression: JavaObject, known: Mapping[int, Column], attribute: JavaObject | None = None
    ) -> Column | None:
        """What an expression makes of the known columns. attribute: what it is named; none within another one."""
        kind = expression.getClass().getSimpleName()
        if kind == "AttributeReference":
            return known.get(expression.exprId().id())
        if kind in _UNCHANGED:
            named = attribute or expression
            inner = python_list(expression.children())[0]
            return self.column_of(inner, known, named if kind == "Alias" else attribute)
        if kind == "CreateNamedStruct" and attribute is not None:
            return self._window(expression, attribute, known)
        times = self._times(expression, kind, known)
        return None if times is None else Column(times=times)

    def _window(self, struct: JavaObject, named: JavaObject, known: Mapping[int, Column]) -> Column | None:
        metadata = named.metadata()
        if metadata.contains(_SESSION):
            _, _, _, end = python_list(struct.children())
            shift = _find(end, "TimestampAddInterval")
            gap = _length(python_list(shift.children())[1]) if shift is not None else None
            self.gap = max(self.gap, gap or timedelta(0))
            self.fail("a session has no longest length")
            return None
        if not metadata.contains(_WINDOW):
            return None
        _, start, _, end = python_list(struct.children())
        remainder, added = _find(start, "Remainder"), _find(end, "Add")
        if remainder is None or added is None:
            return None
        shift, slide = python_list(remainder.children())
        time, offset = python_list(shift.children())
        inner = self.column_of(time, known)
        micros = [_micros(one) for one in (slide, offset, python_list(added.children())[1])]
        if inner is None or inner.is_window or None in micros:
            return None
        slides, offsets, length = (one or timedelta(0) for one in micros)
        starts = window_start(length, slide=slides, offset=offsets)
        ends = window_end(length, slide=slides, offset=offsets)
        return Column(times=after(starts, inner.times), ends=after(ends, inner.times))

    def _times(self, expression: JavaObject, kind: str, known: Mapping[int, Column]) -> Times | None:
        children = python_list(expression.children())
        if kind == "GetStructField":
            window = self.column_of(children[0], known)
            if window is None or window.ends is None:
                return None
            return window.ends if expression.extractFieldName() == "end" else window.times
        if kind == "Coalesce":
            found = [self.column_of(child, known) for child in children]
            one = one_of(found)
            return None if one is None or one.is_window else one.times
        if kind == "TruncTimestamp":
            length = _LENGTHS.get(str(children[0].toString()).lower())
            return self._applied(length, children[1], known)
        if kind == "TruncDate":
            return self._applied(_LENGTHS.get(str(children[1].toString()).lower()), children[0], known)
        if kind in ("Cast", "ParseToDate"):
            becomes_date = expression.dataType().typeName() == "date" and children[0].dataType().typeName() != "date"
            is_time = expression.dataType().typeName() in ("timestamp", "timestamp_ntz", "date")
            return self._applied((_LENGTHS["day"] if becomes_date else SAME) if is_time else None, children[0], known)
        if kind in ("TimestampAddInterval", "DateAdd", "DateSub", "Subtract", "Add") and len(children) == 2:
            by = _length(children[1]) if kind == "TimestampAddInterval" else _step_of(children[1], kind)
            back = kind in ("DateSub", "Subtract")
            return self._applied(None if by is None else shifted(-by if back else by), children[0], known)
        return None

    def _applied(self, step: TimeReach | None, child: JavaObject, known: Mapping[int, Column]) -> Times | None:
        inner = self.column_of(child, known)
        return None if step is None or inner is None or inner.is_window else after(step, inner.times)


def after(step: TimeReach, times: Times) -> Times:
    """By input, a step after those that lead to it."""
    return {name: step.after(one) if one is not SAME or step is not SAME else SAME for name, one in times.items()}


def merged(one: Times, other: Times) -> Times:
    """The rows of two kinds of which something is made."""
    return {
        name: one[name].joined(other[name]) if name in one and name in other else {**one, **other}[name]
        for name in {**one, **other}
    }


def one_of(columns: list[Column | None]) -> Column | None:
    """A column that is one of some; none when one of them cannot be followed."""
    known = [column for column in columns if column is not None]
    if not known or len(known) < len(columns) or len({column.is_window for column in known}) > 1:
        return None
    times = reduce(merged, (column.times for column in known))
    ends = reduce(merged, (column.ends or {} for column in known)) if known[0].is_window else None
    return Column(times=times, ends=ends)


def _find(expression: JavaObject, kind: str) -> JavaObject | None:
    """The first expression of a kind, from above."""
    if expression.getClass().getSimpleName() == kind:
        return expression
    found = (_find(child, kind) for child in python_list(expression.children()))
    return next((one for one in found if one is not None), None)


def _number(expression: JavaObject) -> int | None:
    value = expression.eval(None) if expression.foldable() else None
    return value if isinstance(value, int) else None


def _micros(expression: JavaObject) -> timedelta | None:
    number = _number(expression)
    return None if number is None else timedelta(microseconds=number)


def _step_of(expression: JavaObject, kind: str) -> timedelta | None:
    number = _number(expression)
    return None if number is None else number * (_A_DAY if kind.startswith("Date") else timedelta(microseconds=1))


def _length(expression: JavaObject) -> timedelta | None:
    """The length of a constant interval; none when it has months, or is not constant."""
    if expression.foldable() and expression.dataType().typeName() == "interval":
        value = expression.eval(None)
        if value.extractAsPeriod().toTotalMonths():
            return None
        duration = value.extractAsDuration()
        days = timedelta(days=value.extractAsPeriod().getDays())
        return days + timedelta(seconds=duration.getSeconds(), microseconds=duration.getNano() // 1000)
    is_of_days = "DayTimeInterval" in expression.dataType().getClass().getSimpleName()
    return _micros(expression) if is_of_days else None
