"""The services of a stack give another user of the machine, and a web page in a browser on it, nothing."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor
from itertools import chain
from pathlib import Path

import boto3
import pytest
from tests.fixtures.stack import Stack
from tests.fixtures.strangers import (
    ONLY_ROOT,
    Answer,
    ask_http,
    kafka_topics,
    postgres_refusals,
    speaks_grpc,
    stranger,
    usable,
)
from tests.integration.stack.traces import asked_of_processes, listening_ports, pid_of, umask_of

from sluice.stack.stack_plan import GRPC_OFFSET
from sluice.stack.stack_records import read_ports

pytestmark = ONLY_ROOT

_TEMPORARY = Path("/tmp")  # noqa: S108  # where SeaweedFS itself puts its sockets

PLANTED = b"a row that nobody else may read"
KEY = "strangers/rows.txt"

HTTP_PORTS = ("s3", "iceberg", "seaweedfs-master", "seaweedfs-volume", "seaweedfs-filer", "seaweedfs-admin")
GRPC_PORTS = ("s3", "seaweedfs-master", "seaweedfs-volume", "seaweedfs-filer", "seaweedfs-admin")
KAFKA_PORTS = ("kafka", "kafka-controller")

PATHS = (
    f"/buckets/landing/{KEY}",
    "/",
    "/healthz",
    "/status",
    "/metrics",
    "/ui/index.html",
    "/debug/pprof/",
    "/dir/status",
    "/dir/lookup?volumeId=1&fileId=1,01",
    "/dir/assign",
    "/vol/status",
    "/cluster/status",
    "/stats/disk",
    "/buckets/",
    "/buckets/lakehouse/?pretty=y&limit=100",
    f"/landing/{KEY}",
    "/landing?list-type=2",
    "/api/config",
    "/v1/config",
    "/v1/namespaces",
    "/v1/lakehouse/namespaces",
)

OPEN = {("s3", "/healthz"), ("s3", "/status"), ("iceberg", "/v1/config")}
"""What answers without credentials, and holds no data: whether a service lives, that the catalog has no defaults."""


@pytest.fixture(scope="module")
def ports(services_stack: Stack) -> dict[str, int]:
    """The ports of the services, by name; an object lies in the store."""
    secret = services_stack.environment()
    store = boto3.client(
        "s3",
        endpoint_url=secret["SLUICE_OBJECT_STORE__ENDPOINT"],
        region_name="us-east-1",
        aws_access_key_id=secret["SLUICE_OBJECT_STORE__ACCESS_KEY_ID"],
        aws_secret_access_key=secret["SLUICE_OBJECT_STORE__SECRET_ACCESS_KEY"],
    )
    store.put_object(Bucket="landing", Key=KEY, Body=PLANTED)
    assert store.get_object(Bucket="landing", Key=KEY)["Body"].read() == PLANTED
    return read_ports(services_stack.data / "ports.json")


@pytest.fixture(scope="module")
def other_user() -> Iterator[Executor]:
    """A process of another user."""
    with stranger() as process:
        yield process


def test_every_port_is_asked(services_stack: Stack, ports: dict[str, int]) -> None:
    """A new port needs a place in one of the lists above."""
    asked = {ports[name] for name in (*HTTP_PORTS, *KAFKA_PORTS, "postgres")}
    asked |= {ports[name] + GRPC_OFFSET for name in GRPC_PORTS}

    assert set(chain.from_iterable(asked_of_processes(services_stack, listening_ports))) == asked


@pytest.mark.parametrize(("host", "method"), [("", "GET"), ("page.example", "GET"), ("", "POST")])
@pytest.mark.parametrize("name", HTTP_PORTS)
def test_another_user_and_a_web_page_get_nothing(
    services_stack: Stack, ports: dict[str, int], other_user: Executor, name: str, host: str, method: str
) -> None:
    certificate = (services_stack.data / "seaweedfs-security" / "certificate.pem").read_text()
    asking = other_user.submit(ask_http, ports[name], PATHS, host=host, method=method, trusted=certificate)
    answers: list[Answer] = asking.result()
    closed = [answer for answer in answers if (name, answer.question.partition(str(ports[name]))[2]) not in OPEN]
    given = [answer for answer in closed if 200 <= answer.status < 400]

    assert [(answer.question, answer.status, answer.body[:80]) for answer in given] == []
    assert [answer.question for answer in answers if PLANTED in answer.body] == []
    if name != "s3":  # which lets every page read that it was refused, whatever origins are allowed
        assert [answer.question for answer in answers if answer.allowed_origin] == []


def test_no_part_of_seaweedfs_greets_another_user(ports: dict[str, int], other_user: Executor) -> None:
    greeted = [name for name in GRPC_PORTS if other_user.submit(speaks_grpc, ports[name] + GRPC_OFFSET).result()]

    assert greeted == []


def test_kafka_shows_its_topics_to_nobody_without_a_password(ports: dict[str, int], other_user: Executor) -> None:
    shown = {name: other_user.submit(kafka_topics, ports[name]).result() for name in KAFKA_PORTS}

    assert shown == dict.fromkeys(KAFKA_PORTS, b"")


def test_postgresql_opens_to_nobody_without_a_password(ports: dict[str, int], other_user: Executor) -> None:
    refusals = other_user.submit(postgres_refusals, ports["postgres"]).result()

    assert ["no password supplied" in refusal for refusal in refusals] == [True] * 3


def test_what_a_service_creates_is_its_user_s_alone(services_stack: Stack) -> None:
    masks = asked_of_processes(services_stack, umask_of)

    assert len(masks) >= 3
    assert {*masks} <= {"0077"}


def test_another_user_reads_no_file(services_stack: Stack, ports: dict[str, int], other_user: Executor) -> None:
    numbers = {number for name in GRPC_PORTS for number in (ports[name], ports[name] + GRPC_OFFSET)}
    sockets = [path for number in numbers for path in _TEMPORARY.glob(f"seaweedfs-*-{number}.sock")]
    logs = [path for pid in asked_of_processes(services_stack, pid_of) for path in _TEMPORARY.glob(f"weed.*.{pid}")]

    assert len(sockets) >= 5
    assert other_user.submit(usable, [services_stack.data, *sockets]).result() == []
    assert logs == []
