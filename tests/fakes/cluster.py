"""A cluster whose applications exist in memory only. It keeps what `tests/contracts/test_clusters.py` asks of each."""

from __future__ import annotations

import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

from sluice.errors import ClusterError, LaunchError
from sluice.launching.launcher_port import ApplicationObservation, ApplicationState, ApplicationTag
from sluice.launching.submission import Submission
from sluice.ledger.applications import find_application
from sluice.ledger.connection import Ledger
from sluice.ledger.runs import find_run
from sluice.ledger.work_values import ApplicationState as WorkApplicationState

Labels = frozenset[tuple[str, str]]

_TAG = "fake.tag."
_APPLICATION = "sluice-application"

IGNORES_ITS_LEASE = "ignores-its-lease"
"""The argument of a driver that hangs: it goes on when its lease is lost."""


def fake_conf(tag: ApplicationTag, environment: Mapping[str, str], settings_file: Path) -> dict[str, str]:
    """The settings of an application of this cluster, and what the file has that goes along, as of this moment."""
    tags = {f"{_TAG}{key}": value for key, value in tag.labels().items()}
    mode = f"{stat.S_IMODE(settings_file.stat().st_mode):o}"
    return (
        tags
        | {f"fake.environment.{name}": value for name, value in environment.items()}
        | {"fake.file": str(settings_file), "fake.file.mode": mode, "fake.file.content": settings_file.read_text()}
    )


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
    _applications: dict[Labels, ApplicationObservation] = field(default_factory=dict)
    _hung: set[Labels] = field(default_factory=set)
    _numbers: count[int] = field(default_factory=lambda: count(1))

    def submit(self, submission: Submission) -> None:
        """Take an application in, and give it a place at once."""
        self.submissions.append(submission)
        settings = _read_properties(submission.properties_file.read_text())
        self.settings.append(settings)
        tag = _Submitted({key.removeprefix(_TAG): value for key, value in settings.items() if key.startswith(_TAG)})
        known = self._applications.get(_key(tag))
        if known is not None and not known.is_live:
            del self._applications[_key(tag)]
        if self.refusal:
            if self.lists_refused:
                self.add(tag, ApplicationState.FAILED, explanation=self.refusal)
            raise LaunchError("it could not be submitted" if self.lists_refused else self.refusal)
        self.add(tag, ApplicationState.RUNNING)
        if IGNORES_ITS_LEASE in submission.arguments:
            self._hung.add(_key(tag))
        if self.lost_answer:
            raise LaunchError("the answer was lost")

    def add(
        self, tag: ApplicationTag, state: ApplicationState, *, explanation: str = "", exit_code: int | None = None
    ) -> str:
        """Let an application stand somewhere. Returns its id."""
        known = self._applications.get(_key(tag))
        name = known.application_id if known is not None else f"application_{next(self._numbers)}"
        self._applications[_key(tag)] = ApplicationObservation(
            application_id=name, state=state, explanation=explanation, exit_code=exit_code
        )
        return name

    def find(self, tag: ApplicationTag) -> ApplicationObservation | None:
        """The application with this tag."""
        if self.is_silent:
            raise ClusterError("The cluster does not answer.")
        found = self._applications.get(_key(tag))
        is_obedient = self.ledger is not None and _key(tag) not in self._hung and "sluice-token" in tag.labels()
        if found is not None and found.is_live and is_obedient and not self._holds_lease(tag):
            self.add(tag, ApplicationState.FAILED, explanation="its lease is lost")
        return self._applications.get(_key(tag))

    def kill(self, application_id: str) -> None:
        """End an application."""
        if self.is_silent:
            raise ClusterError("The cluster does not answer.")
        self.kills.append(application_id)
        for key, known in self._applications.items():
            if known.application_id == application_id and known.is_live:
                self._applications[key] = replace(known, state=ApplicationState.KILLED)

    def _holds_lease(self, tag: ApplicationTag) -> bool:
        assert self.ledger is not None
        if _APPLICATION in tag.labels():
            return find_application(self.ledger, tag.run_id).state is not WorkApplicationState.ENDED
        return find_run(self.ledger, tag.run_id).is_live


@dataclass(frozen=True, slots=True)
class _Submitted:
    """The tag of a submission, as its settings have it."""

    parts: Mapping[str, str]

    @property
    def run_id(self) -> str:
        return self.parts[_APPLICATION] if _APPLICATION in self.parts else self.parts["sluice-run"]

    def labels(self) -> Mapping[str, str]:
        return self.parts


def _key(tag: ApplicationTag) -> Labels:
    return frozenset(tag.labels().items())


def _read_properties(text: str) -> dict[str, str]:
    """As java.util.Properties reads what is written here: one line for each, `\\` before what has a meaning."""
    entries = (re.split(r"(?<!\\)=", line, maxsplit=1) for line in text.splitlines())
    return {_unescaped(key): _unescaped(value) for key, value in entries}


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda found: {"n": "\n", "r": "\r", "t": "\t"}.get(found[1], found[1]), text)
