"""Drivers as applications of a cluster: of streams, and for work items.

A run is bound to its tag in the ledger before its application is submitted, and the tag is on the application. So is an
application for work items, by its id in the ledger. So:

- The launching process may die at any moment: the next one finds the application by the tag of the run, and adopts it.
- A run has one application: the ledger refuses a second binding, and nothing is submitted without one.
- An application that starts after its run was given up finds its run ended, and does nothing.
- While a cluster does not answer, its applications are unknown: none is killed, and none is started.

The end of an application for work items is not observed here: one that is silent for too long counts as dead in the
ledger, and ends itself.
"""

from __future__ import annotations

import getpass
import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from uuid import UUID

from sluice.errors import ClusterError, LaunchError, LedgerError, SettingsError
from sluice.failures.classification import failure_of_exit
from sluice.launching.launcher_port import (
    ApplicationObservation,
    ApplicationState,
    ApplicationTag,
    Cluster,
    DriverTag,
    LaunchRequest,
    WorkTag,
    tag_in,
)
from sluice.launching.spark_submit import SparkConnection
from sluice.launching.submission import (
    SUBMITTED_WITHIN_SECONDS,
    Submission,
    Submit,
    driver_environment,
    private_file,
    private_properties,
)
from sluice.launching.yarn import YarnCluster, yarn_conf
from sluice.ledger.applications import bind_application, end_application
from sluice.ledger.connection import Ledger
from sluice.ledger.run_values import DriverExit, RunState
from sluice.ledger.runs import find_run, record_end, record_process
from sluice.processes.deadline import wait_until
from sluice.processes.process_identity import RUN_ID_VARIABLE, ProcessIdentity, ProcessState
from sluice.settings import SETTINGS_FILE, SETTINGS_FILE_VARIABLE

_log = logging.getLogger(__name__)

KILLED_WITHIN_SECONDS = 90.0
"""How long a cluster may take to end an application after the kill request."""

_LOOK_SECONDS = 0.5

_STATES: Mapping[ApplicationState, ProcessState] = {
    ApplicationState.QUEUED: ProcessState.QUEUED,
    ApplicationState.RUNNING: ProcessState.ALIVE,
}

_REFUSED = frozenset({ApplicationState.FAILED, ApplicationState.KILLED})
"""The states of an application whose submission failed and that will have no driver."""

_LIVING = frozenset({ProcessState.ALIVE, ProcessState.QUEUED})

_KILLED_EXIT_CODE = -9


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterLauncher:
    """Starts drivers on a cluster. `tests/contracts/test_launcher.py` is its contract.

    connection: the name of the Spark connection.
    ledger_url: the address of the ledger for drivers; it is passed in their environment.
    cluster: finds applications, and kills them.
    conf_for: returns the settings that put a tag, an environment and a file on an application of this kind of cluster;
        the file holds the deployment's variables, and the environment none of them.
    submit: submits an application.
    """

    connection: str
    ledger: Ledger
    ledger_url: str = field(repr=False)
    cluster: Cluster
    conf_for: Callable[[ApplicationTag, Mapping[str, str], Path], dict[str, str]]
    submit: Submit

    def launch(self, request: LaunchRequest) -> ProcessIdentity:
        """Bind the run, or the application for work items, to its tag, then submit its driver.

        Raises
        ------
        LaunchError: when the ledger refuses, or when the submission failed and the cluster knows no such application.
        """
        try:
            tag = self._new_tag(request)
            process = ProcessIdentity(
                host=self.connection, pid=0, started_at_seconds=tag.launched_at_ms / 1000, application=tag.text
            )
            self._bind(request, process)
        except LedgerError as error:
            raise LaunchError(f"{request.described} was not started: {error}") from error
        try:
            self._submit(request, tag)
        except LaunchError as error:
            self._require_application(tag, error)
        return process

    def observe(self, process: ProcessIdentity) -> ProcessState:
        """Observe whether a driver's application lives. UNKNOWN when the cluster does not answer, and as long as the
        submission may still be under way."""
        tag = self._tag_of(process)
        if tag is None:
            return ProcessState.UNKNOWN
        try:
            found = self.cluster.find(tag)
        except ClusterError as error:
            _log.warning("connection=%s: %s is unknown: %s", self.connection, tag.described, error)
            return ProcessState.UNKNOWN
        if found is None:
            may_come = time.time() - process.started_at_seconds < SUBMITTED_WITHIN_SECONDS
            return ProcessState.UNKNOWN if may_come else ProcessState.GONE
        return _STATES.get(found.state, ProcessState.GONE)

    def exit_of(self, process: ProcessIdentity) -> DriverExit | None:
        """Return how the cluster reports the end of an application; none when it does not know, or does not answer."""
        tag = self._tag_of(process)
        try:
            found = self.cluster.find(tag) if tag is not None else None
        except ClusterError:
            return None
        return _reported_exit(found) if found is not None and not found.is_live else None

    def stop(self, process: ProcessIdentity, *, grace_seconds: float) -> ProcessState:
        """End an application whose driver did not obey.

        Its lease, or its claims, are ended first: from then on its driver publishes nothing, and ends as soon as it
        learns of it. An application that still lives after `grace_seconds` is killed by the cluster.

        Raises
        ------
        LaunchError: when the application survives that.
        LedgerError: when the ledger cannot be reached; nothing has changed then.
        """
        tag = self._tag_of(process)
        seen = self.observe(process)
        if tag is None or seen not in _LIVING:
            return seen
        taken = "it did not end when asked; its lease was ended and its application stopped"
        self._record_end(tag, exit_code=None, reason=taken)
        if not self._is_gone_within(process, grace_seconds) and not self._is_killed(process, tag):
            return ProcessState.UNKNOWN
        return ProcessState.GONE

    def _new_tag(self, request: LaunchRequest) -> DriverTag | WorkTag:
        """The tag of an application that is about to be launched, with the time in whole milliseconds, so that the
        ledger's number and the tag's are the same."""
        run_id, launched_at_ms = str(UUID(request.run_id)), int(time.time() * 1000)
        if request.is_application:
            return WorkTag(run_id=run_id, launched_at_ms=launched_at_ms)
        run = find_run(self.ledger, request.run_id)
        return DriverTag(stream=run.stream, token=run.token, run_id=run_id, launched_at_ms=launched_at_ms)

    def _bind(self, request: LaunchRequest, process: ProcessIdentity) -> None:
        if request.is_application:
            bind_application(self.ledger, request.run_id, process, log_file=str(request.log_file))
        else:
            record_process(self.ledger, request.run_id, process, request.log_file)

    def _submit(self, request: LaunchRequest, tag: DriverTag | WorkTag) -> None:
        own = {"SLUICE_LEDGER_URL": self.ledger_url, **request.environment, RUN_ID_VARIABLE: request.run_id}
        environment = driver_environment(os.environ, own=own)
        shown = {name: value for name, value in environment.items() if not name.startswith("SLUICE_")}
        shown |= {RUN_ID_VARIABLE: request.run_id, SETTINGS_FILE_VARIABLE: SETTINGS_FILE}
        with (
            private_file(json.dumps(environment), suffix=".json") as settings_file,
            private_properties({**self.conf_for(tag, shown, settings_file), **request.conf}) as properties_file,
        ):
            self.submit(
                Submission(
                    connection=self.connection,
                    name=f"sluice work {request.stream}" if request.is_application else f"sluice {request.stream}",
                    application=request.command[0],
                    arguments=request.command[1:],
                    properties_file=properties_file,
                    log_file=request.log_file,
                )
            )

    def _require_application(self, tag: DriverTag | WorkTag, error: LaunchError) -> None:
        """Raise the error unless the application exists: a failed submission may have reached the cluster."""
        try:
            found = self.cluster.find(tag)
        except ClusterError as silent:
            _log.warning("%s may have been submitted: %s; the cluster is unknown: %s", tag.described, error, silent)
            return
        if found is None:
            raise error
        if found.state in _REFUSED:  # YARN lists the applications that it did not accept, with the cause
            raise LaunchError(
                f"{found.application_id}, of {tag.described}, was not accepted, or ended at once, through the "
                f"connection {self.connection}: {(found.explanation or found.state).rstrip('.')}.",
                next_step="Compare the connection and the stream's engine with the resources of the cluster.",
            ) from error
        _log.warning("%s was submitted as %s all the same: %s", tag.described, found.application_id, error)

    def _is_killed(self, process: ProcessIdentity, tag: DriverTag | WorkTag) -> bool:
        """Kill the application, and return whether it ended; not when the cluster no longer answers."""
        try:
            found = self.cluster.find(tag)
            if found is not None and found.is_live:
                self.cluster.kill(found.application_id)
                _log.warning("%s, of %s, was killed", found.application_id, tag.described)
        except ClusterError as error:
            _log.error("%s could not be killed, and holds no lease: %s", tag.described, error)
            return False
        if not self._is_gone_within(process, KILLED_WITHIN_SECONDS):
            if self.observe(process) is ProcessState.UNKNOWN:
                return False
            raise LaunchError(
                f"The application of {tag.described} still lives {KILLED_WITHIN_SECONDS:.0f} s after it was killed.",
                next_step="It holds no lease and publishes nothing. See its nodes.",
            )
        self._record_end(tag, exit_code=_KILLED_EXIT_CODE, reason="killed")
        return True

    def _record_end(self, tag: DriverTag | WorkTag, *, exit_code: int | None, reason: str) -> None:
        if isinstance(tag, WorkTag):
            end_application(self.ledger, tag.run_id, reason=reason)
        else:
            record_end(self.ledger, tag.run_id, state=RunState.FAILED, exit_code=exit_code, reason=reason)

    def _is_gone_within(self, process: ProcessIdentity, seconds: float) -> bool:
        look = partial(self.observe, process)
        seen = wait_until(look, lambda state: state is ProcessState.GONE, seconds=seconds, poll_seconds=_LOOK_SECONDS)
        return seen is ProcessState.GONE

    def _tag_of(self, process: ProcessIdentity) -> DriverTag | WorkTag | None:
        """The tag of a driver of this connection; none for a driver of another one."""
        return tag_in(process) if process.host == self.connection else None


def _reported_exit(found: ApplicationObservation) -> DriverExit:
    if found.state is ApplicationState.SUCCEEDED:
        return DriverExit(state=RunState.FINISHED, exit_code=0, reason="finished")
    if found.state is ApplicationState.KILLED:
        exit_code = found.exit_code if found.exit_code is not None else _KILLED_EXIT_CODE
        reason = f"killed by the cluster: {found.explanation or 'without diagnostics'}"
    else:
        exit_code = found.exit_code or 1
        reason = found.explanation or f"application {found.application_id} failed"
    failure = failure_of_exit(exit_code, state=RunState.FAILED, reason=reason)
    return DriverExit(state=RunState.FAILED, exit_code=exit_code, reason=reason, failure=failure)


def cluster_launcher(
    name: str, connection: SparkConnection, *, ledger: Ledger, ledger_url: str, submit: Submit
) -> ClusterLauncher:
    """Return the launcher of the cluster that a Spark connection leads to.

    Parameters
    ----------
    name: the connection's.
    ledger_url: the address of the ledger for drivers, which run on the cluster's machines.
    submit: submits through this connection.

    Raises
    ------
    SettingsError: when the connection leads to a kind of cluster that is not supported, or is incomplete.
    """
    return ClusterLauncher(
        connection=name,
        ledger=ledger,
        ledger_url=ledger_url,
        cluster=_yarn_of(name, connection),
        conf_for=yarn_conf,
        submit=submit,
    )


def _yarn_of(name: str, connection: SparkConnection) -> YarnCluster:
    _require_usable(name, connection)
    return YarnCluster(addresses=connection.resource_managers, user=connection.user or getpass.getuser())


def _require_usable(name: str, connection: SparkConnection) -> None:
    if connection.master.startswith("k8s"):
        raise SettingsError(
            f"The Spark connection {name} leads to Kubernetes in cluster mode, which does not work yet: it was never "
            "run on a Kubernetes cluster.",
            next_step="Use YARN, or the deploy-mode client with drivers on this host.",
        )
    if connection.master != "yarn" or not connection.is_cluster:
        raise SettingsError(
            f"The Spark connection {name} has the master {connection.master} and the deploy-mode "
            f"{connection.deploy_mode}; on a cluster Sluice runs with yarn and cluster.",
            next_step="See docs/guides/cluster.md.",
        )
    if not connection.resource_managers:
        raise SettingsError(
            f"The Spark connection {name} does not have the address of YARN's ResourceManager.",
            next_step='Write "yarn_resourcemanager_webapp_address": "http://host:8088" into its extra.',
        )
    wrong = [one for one in connection.resource_managers if not one.startswith(("http://", "https://"))]
    if wrong:
        raise SettingsError(
            f"The Spark connection {name} names the ResourceManager {wrong[0]}, which is not an http or https address.",
            next_step="Write it like http://host:8088.",
        )
