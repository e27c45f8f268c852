"""One Kafka broker that is its own KRaft controller.

Source: https://kafka.apache.org/43/configuration/broker-configs/
"""

from __future__ import annotations

import base64
import shutil
import socket
import uuid
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from sluice.stack.credentials import KAFKA_USER
from sluice.stack.folder import write_private
from sluice.stack.stack_plan import (
    HEALTHY,
    LOOPBACK,
    Command,
    Health,
    PortRequest,
    Preparation,
    RunTool,
    Service,
    StackPlan,
)

TOPIC_SETTINGS: Mapping[str, str] = {
    # A misspelt topic must be an error, not a new topic.
    "auto.create.topics.enable": "false",
    "num.partitions": "2",
    "log.retention.hours": "168",
}
"""The defaults of every topic; docker-compose.yaml sets the same."""

SINGLE_BROKER_SETTINGS: Mapping[str, str] = {
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "4",
    "group.initial.rebalance.delay.ms": "0",
}
"""Kafka's defaults are for three brokers and thousands of groups."""

AUTHENTICATION: Mapping[str, str] = {
    "sasl.enabled.mechanisms": "PLAIN",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "sasl.mechanism.controller.protocol": "PLAIN",
}
"""Every connection proves a password. Not SCRAM: Kafka stores its users itself, so the first of them would have to be
created through a connection that needs none. PLAIN sends the
password, which only a network could reveal, and this one does not leave the machine."""

_ANSWER_SECONDS = 3.0

_JVM = (
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",  # starts faster and needs less memory; the broker's work is mostly the kernel's
    "-XX:+ExitOnOutOfMemoryError",
    "-Djava.net.preferIPv4Stack=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.log.kafka.server=info",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSS",
)


def _folder(plan: StackPlan) -> Path:
    return plan.folder.data / "kafka"


def _properties(plan: StackPlan) -> str:
    broker, controller = plan.address("kafka"), plan.address("kafka-controller")
    settings = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.bootstrap.servers": controller,
        "listeners": f"CLIENT://{broker},CONTROLLER://{controller}",
        "advertised.listeners": f"CLIENT://{broker}",
        "listener.security.protocol.map": "CLIENT:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "CLIENT",
        "listener.name.client.plain.sasl.jaas.config": _login(plan),
        "listener.name.controller.plain.sasl.jaas.config": _login(plan),
        **AUTHENTICATION,
        "log.dirs": str(_folder(plan) / "data"),
        **SINGLE_BROKER_SETTINGS,
        **TOPIC_SETTINGS,
    }
    return "".join(f"{name}={value}\n" for name, value in settings.items())


def _login(plan: StackPlan) -> str:
    """The one user, as which the broker logs in to itself too. The password is safe inside quotes."""
    password = plan.credentials.kafka_password
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    return f'{module} required username="{KAFKA_USER}" password="{password}" user_{KAFKA_USER}="{password}";'


def _client_settings(plan: StackPlan) -> dict[str, str]:
    return {
        "bootstrap.servers": plan.address("kafka"),
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": KAFKA_USER,
        "sasl.password": plan.credentials.kafka_password,
    }


def _prepare(plan: StackPlan) -> None:
    _folder(plan).mkdir(mode=0o700, exist_ok=True)
    write_private(_folder(plan) / "server.properties", _properties(plan))


def _java(plan: StackPlan, main_class: str, *arguments: str) -> Command:
    class_path = str(plan.tools.jars / "kafka" / "*")
    return Command(
        argv=(str(plan.tools.java), *_JVM, "-cp", class_path, main_class, *arguments), working_folder=_folder(plan)
    )


def _format(plan: StackPlan, run_tool: RunTool) -> None:
    formatted = _folder(plan) / "formatted"
    if formatted.exists():
        return
    shutil.rmtree(_folder(plan) / "data", ignore_errors=True)  # left by an interrupted format
    _prepare(plan)
    cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    # Written with `=`, because one id in 64 begins with a dash and would be read as an option.
    arguments = (
        "format", f"--cluster-id={cluster_id}", "-c", str(_folder(plan) / "server.properties"), "--standalone"
    )  # fmt: skip
    run_tool("kafka", _java(plan, "kafka.tools.StorageTool", *arguments))
    formatted.touch()


def _command(plan: StackPlan) -> Command:
    return _java(plan, "kafka.Kafka", str(_folder(plan) / "server.properties"))


def _probe(plan: StackPlan, since: datetime) -> Health:
    del since  # it answers now or not at all
    try:  # the client would retry and log errors for seconds
        socket.create_connection((LOOPBACK, plan.ports["kafka"]), timeout=_ANSWER_SECONDS).close()
    except OSError as error:
        return Health(False, str(error))
    try:
        # It refuses settings without a password, as `status` has them before the first `up` of this version.
        client = AdminClient({**_client_settings(plan), "log_level": 0}, error_cb=lambda _: None, logger=None)
        brokers = client.list_topics(timeout=_ANSWER_SECONDS).brokers
    except KafkaException as error:
        return Health(False, str(error))
    return HEALTHY if brokers else Health(False, "no broker is registered")


STEPS = (
    Preparation(name="kafka-files", title="Kafka files", needs=(), run=_format),
    Service(
        name="kafka",
        title="Kafka",
        needs=("kafka-files",),
        ports=(
            PortRequest(name="kafka", variable="SLUICE_KAFKA_PORT"),
            PortRequest(name="kafka-controller"),
        ),
        prepare=_prepare,
        command=_command,
        probe=_probe,
        start_seconds=60,
        stop_seconds=10,
        is_foundation=True,
    ),
)
