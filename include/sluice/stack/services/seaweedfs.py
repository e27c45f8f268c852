"""SeaweedFS in one process: the object store (S3) and the Iceberg REST catalog.

Source: `weed help mini`, SeaweedFS 4.48.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from sluice.errors import StackError
from sluice.processes.deadline import wait_until
from sluice.stack.credentials import Credentials
from sluice.stack.environment import LANDING_BUCKET, TABLE_BUCKET
from sluice.stack.folder import write_private
from sluice.stack.seaweedfs_security import write_security
from sluice.stack.stack_plan import (
    GRPC_OFFSET,
    HEALTHY,
    LOOPBACK,
    Command,
    Health,
    PortRequest,
    Preparation,
    RunTool,
    Service,
    StackPlan,
    program,
)

_INTERNAL_PORTS = ("seaweedfs-master", "seaweedfs-volume", "seaweedfs-filer", "seaweedfs-admin")
"""The ports between its parts. `weed mini` always starts all parts, also the admin server, whose UI is switched off."""

_ANSWER_SECONDS = 3.0
_BUCKETS_SECONDS = 30.0


def _prepare(plan: StackPlan) -> None:
    for folder in (_folder(plan), _security_folder(plan)):
        folder.mkdir(mode=0o700, exist_ok=True)
    write_security(_security_folder(plan), host=LOOPBACK)
    write_private(_identities(plan), json.dumps({"identities": identities(plan.credentials)}, indent=2) + "\n")


_ALL = ("Admin", "Read", "Write", "List", "Tagging")

_READING = (
    *("Read", "List"),
    *(f"s3tables:{what}" for what in ("GetTableBucket", "ListTableBuckets", "GetNamespace", "ListNamespaces")),
    *(f"s3tables:{what}" for what in ("GetTable", "ListTables")),
)
"""For files and for the catalog, which answers who may not update a table that it does not exist.
Source: `weed/s3api/s3tables` of SeaweedFS 4.48."""


def identities(credentials: Credentials) -> list[dict[str, object]]:
    """Who may use S3 and the catalog: the stack itself, and whoever only reads."""
    reader_id, reader_secret = credentials.reader
    return [
        _identity("admin", credentials.access_key_id, credentials.secret_access_key, actions=_ALL),
        _identity("reader", reader_id, reader_secret, actions=_READING),
    ]


def _identity(name: str, key_id: str, secret: str, *, actions: Sequence[str]) -> dict[str, object]:
    return {"name": name, "credentials": [{"accessKey": key_id, "secretKey": secret}], "actions": list(actions)}


def _identities(plan: StackPlan) -> Path:
    return _security_folder(plan) / "identities.json"


def _folder(plan: StackPlan) -> Path:
    return plan.folder.data / "seaweedfs"


def _security_folder(plan: StackPlan) -> Path:
    return plan.folder.data / "seaweedfs-security"


def _command(plan: StackPlan) -> Command:
    ports = plan.ports
    flags = {
        "ip": LOOPBACK,
        "ip.bind": LOOPBACK,
        "dir": _folder(plan),
        "master.port": ports["seaweedfs-master"],
        "volume.port": ports["seaweedfs-volume"],
        "filer.port": ports["seaweedfs-filer"],
        "s3.port": ports["s3"],
        "s3.port.iceberg": ports["iceberg"],
        "s3.config": _identities(plan),
        "admin.port": ports["seaweedfs-admin"],
        "s3.port.lance": 0,
        "webdav": "false",
        "admin.ui": "false",
        "master.telemetry": "false",
        # No web page may read an answer of S3, whose default is every page. The name cannot be that of a page.
        "s3.allowedOrigins": "none",
        "volume.preStopSeconds": 0,
        # A volume is a file that only grows. Small ones free a laptop's disk again after tables are compacted.
        "master.volumeSizeLimitMB": 256,
    }
    return Command(
        argv=(
            str(program("weed")),
            f"-config_dir={_security_folder(plan)}",
            "-logtostderr=true",  # its own log files would lie in /tmp, and hold the id of the S3 key
            "mini",
            *(f"-{name}={value}" for name, value in flags.items()),
        ),
        working_folder=_folder(plan),
        environment={
            "AWS_ACCESS_KEY_ID": plan.credentials.access_key_id,
            "AWS_SECRET_ACCESS_KEY": plan.credentials.secret_access_key,
            "S3_BUCKET": LANDING_BUCKET,
            "S3_TABLE_BUCKET": TABLE_BUCKET,
        },
    )


def _probe(plan: StackPlan, since: datetime) -> Health:
    del since  # it answers now or not at all
    try:
        _get(f"{plan.url('s3')}/healthz")
        _catalog_token(plan)
    except (URLError, OSError, ValueError, KeyError) as error:
        return Health(False, str(error))
    return HEALTHY


def _get(url: str, *, token: str = "") -> bytes:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with urlopen(Request(url, headers=headers), timeout=_ANSWER_SECONDS) as answer:  # noqa: S310  # our own loopback URL
        return bytes(answer.read())


def _catalog_token(plan: StackPlan) -> str:
    form = {
        "grant_type": "client_credentials",
        "client_id": plan.credentials.access_key_id,
        "client_secret": plan.credentials.secret_access_key,
        "scope": "catalog",
    }
    request = Request(f"{plan.url('iceberg')}/v1/oauth/tokens", data=urlencode(form).encode())  # noqa: S310  # as above
    with urlopen(request, timeout=_ANSWER_SECONDS) as answer:  # noqa: S310  # as above
        return str(json.loads(answer.read())["access_token"])


def _ensure_buckets(plan: StackPlan, run_tool: RunTool) -> None:
    """Wait for the buckets, which SeaweedFS makes by itself a moment after it answers its first request."""
    del run_tool
    missing = wait_until(lambda: _missing_buckets(plan), lambda names: not names, seconds=_BUCKETS_SECONDS)
    if missing:
        raise StackError(
            f"SeaweedFS did not make the buckets {', '.join(missing)} within {_BUCKETS_SECONDS:.0f} seconds.",
            next_step="Look at `sluice stack logs seaweedfs`.",
        )


def _missing_buckets(plan: StackPlan) -> list[str]:
    import boto3  # takes a quarter of a second, and only `up` needs it
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    client = boto3.client(
        "s3",
        endpoint_url=plan.url("s3"),
        region_name="us-east-1",
        aws_access_key_id=plan.credentials.access_key_id,
        aws_secret_access_key=plan.credentials.secret_access_key,
        config=Config(connect_timeout=_ANSWER_SECONDS, read_timeout=_ANSWER_SECONDS, retries={"total_max_attempts": 1}),
    )
    missing = []
    try:
        client.head_bucket(Bucket=LANDING_BUCKET)
    except (BotoCoreError, ClientError):
        missing.append(LANDING_BUCKET)
    try:
        _get(f"{plan.url('iceberg')}/v1/{TABLE_BUCKET}/namespaces", token=_catalog_token(plan))
    except (URLError, OSError, ValueError, KeyError):
        missing.append(f"{TABLE_BUCKET} (tables)")
    return missing


def _sockets(ports: Mapping[str, int]) -> list[Path]:
    """Its Unix sockets; it removes them itself unless it is killed."""
    return [
        path
        for port in (ports[name] for name in ("s3", *_INTERNAL_PORTS))
        for number in (port, port + GRPC_OFFSET)
        for path in Path("/tmp").glob(f"seaweedfs-*-{number}.sock")  # noqa: S108  # where SeaweedFS itself puts them
    ]


STEPS = (
    Service(
        name="seaweedfs",
        title="SeaweedFS (S3, Iceberg catalog)",
        ports=(
            PortRequest(name="s3", variable="SLUICE_S3_PORT", has_grpc=True),
            PortRequest(name="iceberg", variable="SLUICE_ICEBERG_PORT"),
            *(PortRequest(name=name, has_grpc=True) for name in _INTERNAL_PORTS),
        ),
        prepare=_prepare,
        command=_command,
        probe=_probe,
        start_seconds=45,
        stop_seconds=4,  # while it grows a volume it would not end by itself; what it has stored survives SIGKILL
        is_foundation=True,
        outside_files=_sockets,
    ),
    Preparation(name="buckets", title="Buckets", needs=("seaweedfs",), completes="seaweedfs", run=_ensure_buckets),
)
