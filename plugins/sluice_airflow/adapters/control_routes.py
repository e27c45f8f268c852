"""Which requests to Airflow's API reach runs of `stream_control`, and which of them are allowed. Pure.

Airflow has many addresses for one thing: a run is named in the path or in the body, alone or among others, also under
`~`, which stands for every DAG. So this is a list of what is allowed. A request that changes something and whose path
or body names `stream_control`, or may mean it, is refused unless it has one of these forms, each about one run:

    POST   dags/stream_control/dagRuns                                        a trigger: the stream is in the body
    PATCH  …/dagRuns/{run}/taskInstances/{task}/{map_index}/hitlDetails       an answer
    PATCH, DELETE …/dagRuns/{run};  POST …/dagRuns/{run}/clear                a change of one run
    PATCH, DELETE …/dagRuns/{run}/taskInstances/{task}…                       a change of its tasks
    POST   dags/stream_control/clearTaskInstances                             the same; the run is in the body
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

CONTROL_DAG = "stream_control"

CHANGES = frozenset({"POST", "PATCH", "PUT", "DELETE"})
"""The methods of requests that may change something."""

HARMLESS = frozenset({"assets", "connections", "parseDagFile", "pools", "variables"})
"""What the API has beside DAGs and their backfills. None of it reaches a run of `stream_control`: that DAG is not
scheduled by assets, and writes none."""

_API = re.compile(r"/api/v2/(?P<rest>.*)", re.DOTALL)
_EVERY = "~"

_READS = re.compile(r"dagRuns(/[^/]+/taskInstances)?/list")
"""Lists are asked for with POST, because their filters are long."""

_OF_THE_DAG = {
    "PATCH": re.compile(r""),
    "DELETE": re.compile(r"|assets/([^/]+/)?queuedEvents"),
    "POST": re.compile(r"favorite|unfavorite"),
}
"""What changes the DAG itself: pausing and deleting it start nothing."""

_TRIGGER = re.compile(r"dagRuns")
_ANSWER = re.compile(r"dagRuns/(?P<run>[^/]+)/taskInstances/(?P<task>[^/]+)/(?P<index>-?\d+)/hitlDetails")
_RUN = r"dagRuns/(?P<run>[^/]+)"
_TASK = rf"{_RUN}/taskInstances/[^/]+"
_OF_RUN = {
    "PATCH": re.compile(rf"{_RUN}|{_TASK.replace('?P<run>', '?P<of>')}(/-?\d+)?(/dry_run)?"),
    "DELETE": re.compile(rf"{_RUN}|{_TASK.replace('?P<run>', '?P<of>')}"),
    "POST": re.compile(rf"{_RUN}/clear"),
}
_CLEAR = re.compile(r"clearTaskInstances")
_OTHER_RUNS = ("include_past", "include_future", "include_upstream_dags", "include_downstream_dags")


class ControlForm(StrEnum):
    """What a request is. REFUSED: it may be about several runs, or has a form that is not known."""

    TRIGGER = "trigger"
    ANSWER = "answer"
    OF_RUN = "of_run"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlledRequest:
    """A request that reaches runs of `stream_control`.

    run_id: the run that it is about; unset for a trigger that leaves the id to Airflow. task, map_index: of an answer.
    """

    form: ControlForm
    run_id: str | None = None
    task: str = ""
    map_index: int = -1


_REFUSED = ControlledRequest(form=ControlForm.REFUSED)


def judge_request(method: str, path: str, body: Any) -> ControlledRequest | None:
    """What a request is to the runs of `stream_control`; none when it cannot reach them.

    Parameters
    ----------
    body: the document that was sent; none when it is no JSON.
    """
    place = _API.search(path)
    if method not in CHANGES or place is None:
        return None
    first, _, behind = place["rest"].partition("/")
    if first in HARMLESS:
        return None
    if first != "dags":
        return _REFUSED if _names_control(body) else None
    dag, _, rest = behind.partition("/")
    if _is_control(dag):
        return _judge_control(method, rest, body)
    if _READS.fullmatch(rest) and method == "POST":
        return None
    may_mean_control = _names_control(body) or (dag == _EVERY and not _names_every_dag(body))
    return _REFUSED if may_mean_control else None


def _judge_control(method: str, rest: str, body: Any) -> ControlledRequest | None:
    """The same for an address of the DAG itself. rest: the path behind its name."""
    if (method == "POST" and _READS.fullmatch(rest)) or _matches(_OF_THE_DAG, method, rest):
        return None
    document = body if isinstance(body, Mapping) else {}
    if any(document.get(name) for name in _OTHER_RUNS) or "\0" in rest or "\0" in "".join(_strings(body)):
        return _REFUSED
    if method == "POST" and _TRIGGER.fullmatch(rest):
        named = document.get("dag_run_id")
        return ControlledRequest(form=ControlForm.TRIGGER, run_id=named if isinstance(named, str) else None)
    if method == "PATCH" and (found := _ANSWER.fullmatch(rest)):
        return _of_run(
            ControlledRequest(
                form=ControlForm.ANSWER, run_id=found["run"], task=found["task"], map_index=int(found["index"])
            )
        )
    if method == "POST" and _CLEAR.fullmatch(rest):
        named = document.get("dag_run_id")
        return _of_run(ControlledRequest(form=ControlForm.OF_RUN, run_id=named if isinstance(named, str) else None))
    if found := _matches(_OF_RUN, method, rest):
        groups = found.groupdict()
        return _of_run(ControlledRequest(form=ControlForm.OF_RUN, run_id=groups["run"] or groups.get("of")))
    return _REFUSED


def _of_run(request: ControlledRequest) -> ControlledRequest:
    return request if request.run_id not in (None, "", _EVERY) else _REFUSED


def _matches(forms: Mapping[str, re.Pattern[str]], method: str, rest: str) -> re.Match[str] | None:
    return forms[method].fullmatch(rest) if method in forms else None


def _is_control(name: Any) -> bool:
    """Whether a name is that of the DAG: also in other letters, which some metadata databases take for the same."""
    return isinstance(name, str) and name.strip().casefold() == CONTROL_DAG


def _names_control(body: Any) -> bool:
    return any(_is_control(one) for one in _texts(body))


def _names_every_dag(body: Any) -> bool:
    """Whether a request about every DAG names in its body one DAG for each run, and so none but those."""
    parts = list(_objects(body))
    named = [part for part in parts if isinstance(part.get("dag_id"), str) and part["dag_id"] != _EVERY]
    of_runs = [part for part in parts if part.keys() & {"dag_run_id", "run_id", "task_id", "dag_id"}]
    return bool(named) and len(named) == len(of_runs)


def _texts(body: Any) -> Iterator[Any]:
    match body:
        case Mapping():
            yield from body
            for one in body.values():
                yield from _texts(one)
        case list():
            for one in body:
                yield from _texts(one)
        case _:
            yield body


def _strings(body: Any) -> Iterator[str]:
    return (one for one in _texts(body) if isinstance(one, str))


def _objects(body: Any) -> Iterator[Mapping[str, Any]]:
    match body:
        case Mapping():
            yield body
            for one in body.values():
                yield from _objects(one)
        case list():
            for one in body:
                yield from _objects(one)


_SHOWN_DIGEST = re.compile(r"^Plan `([0-9a-f]{64})`$", re.MULTILINE)


def with_digest(text: str, digest: str) -> str:
    """The text of a plan as a person is asked about it: it names the very plan."""
    return f"{text}\n\nPlan `{digest}`"


def digest_in(text: str) -> str | None:
    """The digest of the plan that a person was shown; none when the text names none, or several."""
    found = _SHOWN_DIGEST.findall(text)
    return str(found[0]) if len(found) == 1 else None
