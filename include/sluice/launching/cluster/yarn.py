"""YARN, by the REST API of its ResourceManager.

Source: https://hadoop.apache.org/docs/r3.4.2/hadoop-yarn/hadoop-yarn-site/ResourceManagerRest.html
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from sluice.errors import ClusterError
from sluice.launching.cluster.application import ApplicationObservation, ApplicationState, DriverTag
from sluice.launching.cluster.cluster_http import ask_json

_QUEUED = frozenset({"NEW", "NEW_SAVING", "SUBMITTED", "ACCEPTED"})

_EXIT_CODE = re.compile(r"exitCode: (-?\d+)|[Ee]xit code:? (\d+)")
"""How diagnostics tell of the application master's process, which runs the driver."""

_LONGEST_EXPLANATION = 600


def yarn_tags(tag: DriverTag) -> tuple[str, ...]:
    """The tag as an application's tags. YARN takes at most ten, of at most 100 small letters each."""
    return tuple(f"{key}:{value}" for key, value in tag.words().items())


@dataclass(frozen=True, slots=True, kw_only=True)
class YarnCluster:
    """A YARN cluster.

    addresses: of the ResourceManager's web application, such as http://host:8088; of a pair both, in any order.
    user: in whose name applications are ended. YARN believes it unless the cluster is secured.
    """

    addresses: tuple[str, ...]
    user: str

    def find(self, tag: DriverTag) -> ApplicationObservation | None:
        """The newest application with all of the tags.

        Raises
        ------
        ClusterError: when no ResourceManager answers.
        """
        tags = yarn_tags(tag)
        run_tag = next(one for one in tags if one.endswith(tag.run_id))
        told = self._ask(
            "GET", f"apps?{urlencode({'applicationTags': run_tag})}"
        )  # more than one tag means any of them
        apps = [app for app in (told.get("apps") or {}).get("app", []) if _has_all(app, tags)]
        if not apps:
            return None
        return _observation_of(max(apps, key=lambda app: int(app.get("startedTime", 0))))

    def kill(self, application_id: str) -> None:
        """Ask the ResourceManager to end an application. It answers before the containers have ended.

        Raises
        ------
        ClusterError: when no ResourceManager answers, or it refuses.
        """
        path = f"apps/{application_id}/state?{urlencode({'user.name': self.user})}"
        try:
            self._ask("PUT", path, body={"state": "KILLED"})
        except ClusterError as error:
            if error.status != 404:  # the ResourceManager has forgotten it, as it does with what ended long ago
                raise

    def _ask(self, method: str, path: str, *, body: object = None) -> dict[str, Any]:
        """Ask the active ResourceManager. One that stands by redirects, which is no answer here."""
        problems = []
        for address in self.addresses:
            try:
                return ask_json(method, f"{address.rstrip('/')}/ws/v1/cluster/{path}", body=body)
            except ClusterError as error:
                problems.append(error)
        refusal = next((error for error in problems if error.status not in (None, 307)), problems[-1])
        raise ClusterError(
            " ".join(error.message for error in problems),
            status=refusal.status,
            next_step="See the ResourceManager, and yarn_resourcemanager_webapp_address in the Spark connection.",
        )


def _has_all(app: Mapping[str, Any], tags: tuple[str, ...]) -> bool:
    return set(tags) <= set(str(app.get("applicationTags", "")).split(","))


def _observation_of(app: Mapping[str, Any]) -> ApplicationObservation:
    diagnostics = " ".join(str(app.get("diagnostics") or "").split())
    code = _EXIT_CODE.search(diagnostics)
    return ApplicationObservation(
        application_id=app["id"],
        state=_state_of(app),
        explanation=diagnostics[:_LONGEST_EXPLANATION],
        exit_code=int(code[1] or code[2]) if code is not None else None,
    )


def _state_of(app: Mapping[str, Any]) -> ApplicationState:
    """A driver that failed on its last attempt leaves the state FINISHED, and says FAILED in its final status."""
    state = app["state"]
    if state in _QUEUED:
        return ApplicationState.QUEUED
    if state == "RUNNING":
        return ApplicationState.RUNNING
    ended = app.get("finalStatus") if state == "FINISHED" else state
    endings = {"SUCCEEDED": ApplicationState.SUCCEEDED, "KILLED": ApplicationState.KILLED}
    return endings.get(str(ended), ApplicationState.FAILED)
