"""A cluster whose applications exist in memory only. It keeps what `tests/contracts/test_clusters.py` asks of each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import count

from sluice.errors import ClusterError, LaunchError
from sluice.launching.cluster.application import ApplicationObservation, ApplicationState, DriverTag
from sluice.launching.cluster.submission import Submission
from sluice.ledger.connection import Ledger
from sluice.ledger.runs import find_run

IGNORES_ITS_LEASE = "ignores-its-lease"
"""The argument of a driver that hangs: it goes on when its lease is lost."""


def fake_conf(tag: DriverTag, environment: Mapping[str, str]) -> dict[str, str]:
    """The settings of an application of this cluster."""
    tags = {f"fake.tag.{key}": value for key, value in tag.labels().items()}
    return tags | {f"fake.environment.{name}": value for name, value in environment.items()}


@dataclass(slots=True)
class FakeCluster:
    """Runs nothing, and remembers what was submitted.

    ledger: asked by drivers that obey: they end when their run has lost its lease.
    refusal: when set, every submission fails with this sentence.
    lists_refused: whether an application that was refused is known as one that failed, as it is on YARN.
    lost_answer: whether a submission reaches the cluster and is reported as failed all the same.
    is_silent: whether the cluster answers no request.
    """

    ledger: Ledger | None = None
    refusal: str = ""
    lists_refused: bool = False
    lost_answer: bool = False
    is_silent: bool = False
    submissions: list[Submission] = field(default_factory=list)
    settings: list[dict[str, str]] = field(default_factory=list)
    kills: list[str] = field(default_factory=list)
    _applications: dict[DriverTag, ApplicationObservation] = field(default_factory=dict)
    _hung: set[DriverTag] = field(default_factory=set)
    _numbers: count[int] = field(default_factory=lambda: count(1))

    def submit(self, submission: Submission) -> None:
        """Take an application in, and give it a place at once."""
        self.submissions.append(submission)
        settings = _read_properties(submission.properties_file.read_text())
        self.settings.append(settings)
        tag = _tag_in(settings)
        if self.refusal:
            if self.lists_refused:
                self.add(tag, ApplicationState.FAILED, explanation=self.refusal)
            raise LaunchError("it could not be submitted" if self.lists_refused else self.refusal)
        self.add(tag, ApplicationState.RUNNING)
        if IGNORES_ITS_LEASE in submission.arguments:
            self._hung.add(tag)
        if self.lost_answer:
            raise LaunchError("the answer was lost")

    def add(
        self, tag: DriverTag, state: ApplicationState, *, explanation: str = "", exit_code: int | None = None
    ) -> str:
        """Let an application stand somewhere. Returns its id."""
        known = self._applications.get(tag)
        name = known.application_id if known is not None else f"application_{next(self._numbers)}"
        self._applications[tag] = ApplicationObservation(
            application_id=name, state=state, explanation=explanation, exit_code=exit_code
        )
        return name

    def find(self, tag: DriverTag) -> ApplicationObservation | None:
        """The application with this tag."""
        if self.is_silent:
            raise ClusterError("The cluster does not answer.")
        found = self._applications.get(tag)
        is_obedient = self.ledger is not None and tag not in self._hung
        if found is not None and found.is_live and is_obedient and not self._holds_lease(tag):
            self.add(tag, ApplicationState.FAILED, explanation="its lease is lost")
        return self._applications.get(tag)

    def kill(self, application_id: str) -> None:
        """End an application."""
        if self.is_silent:
            raise ClusterError("The cluster does not answer.")
        self.kills.append(application_id)
        for tag, known in self._applications.items():
            if known.application_id == application_id and known.is_live:
                self._applications[tag] = replace(known, state=ApplicationState.KILLED)

    def _holds_lease(self, tag: DriverTag) -> bool:
        assert self.ledger is not None
        return find_run(self.ledger, tag.run_id).is_live


def _tag_in(settings: Mapping[str, str]) -> DriverTag:
    words = {key.removeprefix("fake.tag."): value for key, value in settings.items() if key.startswith("fake.tag.")}
    return DriverTag(
        stream=words["sluice-stream"],
        token=int(words["sluice-token"]),
        run_id=words["sluice-run"],
        launched_at_ms=int(words["sluice-launch"]),
    )


def _read_properties(text: str) -> dict[str, str]:
    """As java.util.Properties reads what is written here: one line for each, `\\` before what has a meaning."""
    entries = (re.split(r"(?<!\\)=", line, maxsplit=1) for line in text.splitlines())
    return {_unescaped(key): _unescaped(value) for key, value in entries}


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda found: {"n": "\n", "r": "\r", "t": "\t"}.get(found[1], found[1]), text)
