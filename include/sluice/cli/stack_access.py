"""`sluice stack env | credentials | create-topic | upload`: what programs of one's own need of the local stack.

A secret is shown on a terminal, or where it is asked for by an option; a log or a pipe gets `********`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Annotated

import typer

from sluice.cli.lakehouse_reader import as_reader
from sluice.cli.terminal import AsJson, DryRun, print_dry_run_note
from sluice.errors import StackError, UsageError
from sluice.settings import KafkaConnection, Settings, load_settings
from sluice.stack.credentials import read_credentials
from sluice.stack.environment import LANDING_BUCKET, STACK_MARK, load_environment, shell_lines
from sluice.stack.folder import stack_folder
from sluice.stack.surroundings import remembered_in

LOCAL_KAFKA = "local_kafka"
"""The connection by which declarations name the stack's Kafka."""

MASK = "********"

_ANSWER_SECONDS = 10.0


class Access(StrEnum):
    """What credentials open."""

    KAFKA = "kafka"
    S3 = "s3"
    CATALOG = "catalog"
    READER = "reader"


def env(
    export: Annotated[
        bool, typer.Option("--export", help='With secrets, for `eval "$(sluice stack env --export)"`.')
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print the variables of everything that runs in the stack, as a shell reads them."""
    environment = load_environment(stack_folder().data)
    del environment[STACK_MARK]  # what a shell starts does not belong to the stack
    shown = environment if export or sys.stdout.isatty() else _masked(environment)
    if as_json:
        typer.echo(json.dumps(shown))
        return
    for line in shell_lines(shown):
        typer.echo(f"export {line}" if export else line)


def _masked(environment: Mapping[str, str]) -> dict[str, str]:
    """Without the stack's credentials, and without what a person has added, of which nothing is known."""
    secrets = [value for value in asdict(read_credentials(stack_folder().credentials)).values() if value]
    given = remembered_in(environment).variables
    return {
        name: MASK if name in given or any(secret in value for secret in secrets) else value
        for name, value in environment.items()
    }


def credentials(
    of: Annotated[Access | None, typer.Argument(help="What they open; all when not given.")] = None,
    show_secrets: Annotated[bool, typer.Option("--show-secrets", help="With secrets, wherever it is printed.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print addresses, users and passwords of the stack, as code to paste into a program of one's own."""
    with _local_settings() as settings:
        values = {part: _values(settings, part) for part in ([of] if of is not None else Access)}
    if not (show_secrets or sys.stdout.isatty()):
        values = {part: {name: MASK if name in _SECRET else v for name, v in vs.items()} for part, vs in values.items()}
    if as_json:
        typer.echo(json.dumps(values))
        return
    typer.echo("\n\n".join(_SNIPPETS[part].format(**values[part]) for part in values))
    if not (show_secrets or sys.stdout.isatty()):
        typer.echo("This is no terminal: `--show-secrets` prints the passwords too.", err=True)


_SECRET = frozenset({"password", "secret_access_key", "credential"})

_PYICEBERG = """
from pyiceberg.catalog import load_catalog

catalog = load_catalog(
    "{name}",
    **{{
        "type": "rest",
        "uri": "{uri}",
        "warehouse": "{warehouse}",
        "credential": "{credential}",
        "oauth2-server-uri": "{oauth2_server_uri}",
        "s3.endpoint": "{endpoint}",
        "s3.region": "{region}",
        "s3.access-key-id": "{access_key_id}",
        "s3.secret-access-key": "{secret_access_key}",
    }},
)"""

_SNIPPETS = {
    Access.KAFKA: """\
# Kafka: declarations name it `local_kafka`
from confluent_kafka import Producer

producer = Producer({{
    "bootstrap.servers": "{bootstrap_servers}",
    "security.protocol": "{security_protocol}",
    "sasl.mechanism": "{sasl_mechanism}",
    "sasl.username": "{username}",
    "sasl.password": "{password}",
}})""",
    Access.S3: """\
# S3: the bucket `landing` is the connection `landing` of declarations
import boto3

s3 = boto3.client(
    "s3",
    endpoint_url="{endpoint}",
    region_name="{region}",
    aws_access_key_id="{access_key_id}",
    aws_secret_access_key="{secret_access_key}",
)""",
    Access.CATALOG: f"# Iceberg's REST catalog{_PYICEBERG}",
    Access.READER: f"# The catalog, for reading alone{_PYICEBERG}",
}


def _values(settings: Settings, part: Access) -> dict[str, str]:
    """What a client is configured with, by the names of the settings."""
    if part is Access.KAFKA:
        return _plain(settings.connection(LOCAL_KAFKA, KafkaConnection).model_dump(exclude={"kind"}))
    seen = as_reader(settings) if part is Access.READER else settings
    store = _plain(seen.object_store.model_dump())
    return store if part is Access.S3 else {**store, **_plain(seen.catalog.model_dump())}


def _plain(values: Mapping[str, object]) -> dict[str, str]:
    from pydantic import SecretStr

    return {
        name: value.get_secret_value() if isinstance(value, SecretStr) else str(value)
        for name, value in values.items()
        if value is not None
    }


@contextmanager
def _local_settings() -> Iterator[Settings]:
    """The settings of the local stack, whatever the shell has; the process keeps its own environment."""
    before = dict(os.environ)
    os.environ.update(load_environment(stack_folder().data))
    try:
        yield load_settings()
    finally:
        os.environ.clear()
        os.environ.update(before)


def create_topic(
    name: Annotated[str, typer.Argument(help="The topic.")],
    partitions: Annotated[int, typer.Option(min=1, max=1000, help="How many partitions it gets.")] = 3,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Make a topic in the stack's Kafka, where no topic is made by itself."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    from sluice.sources.kafka_clients import client_settings

    with _local_settings() as settings:
        connection = settings.connection(LOCAL_KAFKA, KafkaConnection)
    admin = AdminClient({**client_settings(connection), "log_level": 0}, error_cb=lambda _: None)
    try:
        if name in admin.list_topics(timeout=_ANSWER_SECONDS).topics:
            raise StackError(
                f"Kafka at {connection.bootstrap_servers} has a topic {name} already.",
                next_step="Write into it, or choose another name.",
            )
        topic = NewTopic(name, num_partitions=partitions, replication_factor=1)
        admin.create_topics([topic], request_timeout=_ANSWER_SECONDS, validate_only=dry_run)[name].result()
    except KafkaException as error:
        raise StackError(
            f"Kafka at {connection.bootstrap_servers} did not create the topic {name}: {error.args[0].str()}.",
            next_step="See `sluice stack status`.",
        ) from error
    if as_json:
        typer.echo(json.dumps({"dry_run": dry_run, "topic": name, "partitions": partitions}))
        return
    typer.echo(
        f"The topic {name} {'would have' if dry_run else 'has'} {partitions} partition{'s' * (partitions != 1)}."
    )
    if dry_run:
        print_dry_run_note()


def upload(
    files: Annotated[list[Path], typer.Argument(exists=True, dir_okay=False, help="The files.")],
    to: Annotated[str, typer.Option(help="The folder in the bucket; its top when not given.")] = "",
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Copy files into the bucket `landing`, where streams of files find them. No file there is replaced."""
    from botocore.exceptions import BotoCoreError, ClientError

    from sluice.checkpoints.s3_checkpoint_files import s3_client

    keys = _keys_for(files, folder=to)
    with _local_settings() as settings:
        store = settings.object_store
    client = s3_client(store)
    try:
        listed = client.get_paginator("list_objects_v2").paginate(Bucket=LANDING_BUCKET, Prefix=_folder_of(to))
        existing = {found["Key"] for page in listed for found in page.get("Contents", ())}
        if taken := sorted(existing & keys.keys()):
            raise StackError(
                f"The bucket {LANDING_BUCKET} has {', '.join(taken)} already; a stream that has read a file does not "
                "read it again under the same name.",
                next_step="Give the files other names, or another folder with --to.",
            )
        for key, file in {} if dry_run else keys.items():
            client.upload_file(str(file), LANDING_BUCKET, key)
    except (BotoCoreError, ClientError) as error:
        raise StackError(f"The object store refused: {error}.", next_step="See `sluice stack status`.") from error
    _print_uploaded(list(keys), dry_run=dry_run, as_json=as_json)


def _keys_for(files: list[Path], *, folder: str) -> dict[str, Path]:
    keys: dict[str, Path] = {}
    for file in files:
        key = f"{_folder_of(folder)}{file.name}"
        if key in keys:
            raise UsageError(f"{keys[key]} and {file} have the same name, and would be one file in the bucket.")
        keys[key] = file
    return keys


def _folder_of(text: str) -> str:
    """The beginning of the keys of a folder."""
    parts = PurePosixPath(text).parts
    if ".." in parts or text.startswith("/"):
        raise UsageError(f"--to is {text!r}; it is a folder inside the bucket, such as `weather/2026`.")
    return "".join(f"{part}/" for part in parts)


def _print_uploaded(keys: list[str], *, dry_run: bool, as_json: bool) -> None:
    places = [f"s3a://{LANDING_BUCKET}/{key}" for key in keys]
    if as_json:
        typer.echo(json.dumps({"dry_run": dry_run, "files": places}))
        return
    for place in places:
        typer.echo(place)
    if dry_run:
        print_dry_run_note()
