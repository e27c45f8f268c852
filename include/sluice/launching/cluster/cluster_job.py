"""Bounded jobs as applications of a cluster: submitted, awaited, and found again by the next try.

Every try of a task has the tag of the try before. So a try after the death of a worker finds the application that still
runs and waits for it, instead of starting a second one.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from sluice.errors import ClusterError, LaunchError
from sluice.launching.cluster.application import ApplicationObservation, ApplicationTag, JobTag
from sluice.launching.cluster.submission import (
    SUBMITTED_WITHIN_SECONDS,
    Submission,
    Submit,
    driver_environment,
    private_properties,
)
from sluice.launching.job_output import JOB_RUN_VARIABLE
from sluice.launching.launcher_port import Cluster
from sluice.processes.deadline import wait_until

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """A job to run.

    application: the file with its `main`. arguments: without secrets. conf: the settings of its application.
    environment: its own variables, beside the deployment's. log_file: as of `Submission`.
    """

    tag: JobTag
    application: str
    arguments: tuple[str, ...]
    conf: Mapping[str, str]
    environment: Mapping[str, str]
    log_file: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterJobs:
    """Runs jobs on the cluster of one Spark connection.

    connection: its name. ledger_url: the address of the ledger for jobs; it is passed in their environment.
    conf_for: returns the settings that put a tag and an environment on an application of this kind of cluster.
    """

    connection: str
    ledger_url: str = field(repr=False)
    cluster: Cluster
    conf_for: Callable[[ApplicationTag, Mapping[str, str]], dict[str, str]]
    submit: Submit
    look_seconds: float = _LOOK_SECONDS

    def run(self, request: JobRequest) -> ApplicationObservation:
        """Wait until the job has ended; submit it first, unless an earlier try has and it still runs.

        While the cluster does not answer, the job is unknown, and the wait goes on.

        Raises
        ------
        LaunchError: when it was not accepted, or the cluster does not know it any more.
        ClusterError: when the cluster does not answer before anything was submitted.
        """
        before = self.cluster.find(request.tag)
        if before is not None and before.is_live:
            _log.info("%s of an earlier try still runs", before.application_id)
            return self._end_of(request.tag, ended_before="")
        ended_before = before.application_id if before is not None else ""
        try:
            self._submit(request)
        except LaunchError as error:
            found = self._look(request.tag, ended_before=ended_before)
            if found is None:
                raise
            _log.warning("%s was submitted all the same: %s", found.application_id, error)
        return self._end_of(request.tag, ended_before=ended_before)

    def kill(self, tag: JobTag) -> None:
        """Ask the cluster to end what runs under a tag.

        Raises
        ------
        ClusterError: when the cluster does not answer, or refuses.
        """
        found = self.cluster.find(tag)
        if found is not None and found.is_live:
            self.cluster.kill(found.application_id)
            _log.warning("%s was killed", found.application_id)

    def _submit(self, request: JobRequest) -> None:
        name = f"{request.tag.job} {request.tag.subject}"
        own = {
            **request.environment,
            "SLUICE_LEDGER_URL": self.ledger_url,
            JOB_RUN_VARIABLE: f"{name} {request.tag.run_id}",
        }
        conf = {**self.conf_for(request.tag, driver_environment(os.environ, own=own)), **request.conf}
        with private_properties(conf) as properties_file:
            self.submit(
                Submission(
                    connection=self.connection,
                    name=f"sluice {name}",
                    application=request.application,
                    arguments=request.arguments,
                    properties_file=properties_file,
                    log_file=request.log_file,
                )
            )

    def _end_of(self, tag: JobTag, *, ended_before: str) -> ApplicationObservation:
        sight = _Sight(known_at_seconds=time.monotonic())
        found = wait_until(
            partial(self._look_on, tag, sight, ended_before=ended_before),
            lambda seen: not seen.is_live if seen is not None else sight.is_lost(now_seconds=time.monotonic()),
            seconds=math.inf,
            poll_seconds=self.look_seconds,
        )
        if found is None:
            raise LaunchError(
                f"The cluster of the connection {self.connection} has known no application of {tag.job} {tag.subject} "
                f"for {SUBMITTED_WITHIN_SECONDS:.0f} s.",
                next_step="See the ResourceManager's list of applications; the task can be run again.",
            )
        return found

    def _look_on(self, tag: JobTag, sight: _Sight, *, ended_before: str) -> ApplicationObservation | None:
        try:
            found = self._look(tag, ended_before=ended_before)
        except ClusterError as error:
            _log.warning("the state of job %s is unknown: %s", tag.run_id, error)
            sight.known_at_seconds = time.monotonic()
            return None
        if found is not None:
            sight.known_at_seconds = time.monotonic()
        return found

    def _look(self, tag: JobTag, *, ended_before: str) -> ApplicationObservation | None:
        """The application of this try; none while the cluster knows only the one that ended before it."""
        found = self.cluster.find(tag)
        return None if found is not None and found.application_id == ended_before else found


@dataclass(slots=True)
class _Sight:
    """When the cluster last knew the application, or did not answer, by the monotonic clock."""

    known_at_seconds: float

    def is_lost(self, *, now_seconds: float) -> bool:
        """Whether the cluster has not known it for so long that it will not come any more."""
        return now_seconds - self.known_at_seconds > SUBMITTED_WITHIN_SECONDS
