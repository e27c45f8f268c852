"""Makes a case smaller while it still differs: drops what it can do without, the largest parts first."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from tests.differential.case import Case, Step
from tests.differential.grammar import kept_in_order


def shrunk(case: Case, differs: Callable[[Case], bool], *, most_seconds: float) -> Case:
    """The smallest case that was found within a time.

    Parameters
    ----------
    differs: whether a case still shows what is wrong. It runs the stream, which takes seconds.
    """
    until = time.monotonic() + most_seconds
    candidates = _smaller(case)
    while time.monotonic() < until:
        candidate = next(candidates, None)
        if candidate is None:
            break
        if differs(candidate):
            case, candidates = candidate, _smaller(candidate)
    return case


def _smaller(case: Case) -> Iterator[Case]:
    """Cases with less in them; those that leave out most come first."""
    yield from _with_fewer_turns(case)
    if len(case.outputs) > 1:
        for output in case.outputs:
            yield replace(case, outputs=(output,))
    yield from _without_a_clause(case)
    yield from _with_fewer_rows(case)
    for number, output in enumerate(case.outputs):
        for less in ({"where": ""}, {"partitioning": ()} if output.mode != "overwrite_partitions" else {}):
            if less and replace(output, **less) != output:
                changed = replace(output, **less)
                yield replace(case, outputs=(*case.outputs[:number], changed, *case.outputs[number + 1 :]))


def _with_fewer_turns(case: Case) -> Iterator[Case]:
    for turn in range(len(case.turns)):
        if len(case.turns) > 1:
            yield kept_in_order(replace(case, turns=(*case.turns[:turn], *case.turns[turn + 1 :])), dropped=turn)


def _without_a_clause(case: Case) -> Iterator[Case]:
    simpler = [
        replace(case, crash=None, lookup_added=()),
        replace(case, lookup_added=()),
        replace(case, evolution=None),
        replace(case, shape="plain"),
        replace(case, where=""),
        replace(case, malformed=0),
        replace(case, source="iceberg", malformed=0),
    ]
    if case.step.kind == "none" or case.join in ("semi", "anti"):
        if not any("label" in output.keys for output in case.outputs):
            simpler.append(replace(case, join=None, lookup_added=()))
        simpler.append(replace(case, computed=None))
    if case.step.kind == "window" and case.step.slide_seconds != case.step.size_seconds:
        simpler.append(replace(case, step=replace(case.step, slide_seconds=case.step.size_seconds)))
    if case.step.kind == "dedupe" and case.outputs[0].mode == "append":
        simpler.append(replace(case, step=Step()))
    if case.step.kind != "window":
        simpler.append(replace(case, delay_seconds=None))
    yield from (one for one in simpler if one != case)


def _with_fewer_rows(case: Case) -> Iterator[Case]:
    for turn, rows in enumerate(case.turns):
        for kept in _parts(len(rows)):
            less = tuple(rows[number] for number in kept)
            yield replace(case, turns=(*case.turns[:turn], less, *case.turns[turn + 1 :]))


def _parts(length: int) -> Iterator[Sequence[int]]:
    """Halves first, then all but one; never nothing."""
    numbers = list(range(length))
    if length > 3:
        yield numbers[: length // 2]
        yield numbers[length // 2 :]
    if length > 1:
        for left_out in numbers:
            yield [number for number in numbers if number != left_out]
