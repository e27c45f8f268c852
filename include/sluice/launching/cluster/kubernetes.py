"""Kubernetes: a driver is a pod with labels, observed by the API.

Source: https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from sluice.errors import ClusterError
from sluice.launching.cluster.cluster_application import ApplicationObservation, ApplicationState, ApplicationTag
from sluice.launching.cluster.cluster_http import request_json

_DRIVER_CONTAINER = "spark-kubernetes-driver"
"""Spark's name of the driver's container in its pod."""

_END_GRACE_SECONDS = 30
"""Between SIGTERM and SIGKILL, so that the driver can end in order."""

_PHASES: Mapping[str, ApplicationState] = {
    "Pending": ApplicationState.QUEUED,
    "Running": ApplicationState.RUNNING,
    "Succeeded": ApplicationState.SUCCEEDED,
    "Failed": ApplicationState.FAILED,
}
"""A pod of any other phase, such as Unknown, is on a node that does not report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesCluster:
    """A namespace of a Kubernetes cluster.

    server: the address of the API. token_file: holds the token of a service account that may list and delete pods; read
        for every request, because it is renewed. ca_file: the certificates that are trusted.
    """

    server: str
    namespace: str
    token_file: Path | None = None
    ca_file: Path | None = None

    def find(self, tag: ApplicationTag) -> ApplicationObservation | None:
        """Return the driver's pod with all of the labels.

        Raises
        ------
        ClusterError: when the API does not answer, or the pod's node does not report.
        """
        labels = {**tag.labels(), "spark-role": "driver"}
        selector = ",".join(f"{key}={value}" for key, value in labels.items())
        pods = self._request("GET", f"pods?{urlencode({'labelSelector': selector})}").get("items") or []
        if not pods:
            return None
        return _observation_of(max(pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp", ""))))

    def kill(self, application_id: str) -> None:
        """Delete the pod. The API answers before it is gone; Spark's executors are its dependents and go with it.

        Raises
        ------
        ClusterError: when the API does not answer, or refuses.
        """
        try:
            self._request("DELETE", f"pods/{quote(application_id)}?gracePeriodSeconds={_END_GRACE_SECONDS}")
        except ClusterError as error:
            if error.status != 404:  # the pod is gone already
                raise

    def _request(self, method: str, path: str) -> dict[str, Any]:
        try:
            headers = {"Authorization": f"Bearer {self.token_file.read_text().strip()}"} if self.token_file else {}
            tls = ssl.create_default_context(cafile=self.ca_file) if self.server.startswith("https:") else None
        except OSError as error:
            raise ClusterError(f"The token or the certificates of {self.server} cannot be read: {error}.") from error
        url = f"{self.server.rstrip('/')}/api/v1/namespaces/{quote(self.namespace)}/{path}"
        return request_json(method, url, headers=headers, tls=tls)


def _observation_of(pod: Mapping[str, Any]) -> ApplicationObservation:
    name, status = pod["metadata"]["name"], pod["status"]
    state = _PHASES.get(status.get("phase", ""))
    if state is None:
        raise ClusterError(f"The node of pod {name} does not report: its phase is {status.get('phase')}.")
    ended = _driver_end(status)
    parts = (ended.get("reason"), ended.get("message"), status.get("reason"), status.get("message"))
    return ApplicationObservation(
        application_id=name,
        state=state,
        explanation=": ".join(" ".join(str(part).split()) for part in parts if part),
        exit_code=ended.get("exitCode"),
    )


def _driver_end(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """The end of the driver's container; empty while it runs."""
    containers = status.get("containerStatuses") or []
    ends = (one.get("state", {}).get("terminated") for one in containers if one.get("name") == _DRIVER_CONTAINER)
    return next((end for end in ends if end), {})
