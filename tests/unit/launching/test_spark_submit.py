"""The exact argv of `spark-submit`, and where the program is looked for."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pydantic import SecretStr
from tests.fixtures.streams import continuous_stream

from sluice.declarations.run_declaration import EngineDeclaration
from sluice.errors import LaunchError
from sluice.launching.job_output import FAILURE_MARK
from sluice.launching.launch_settings import class_path, job_environment, launch_conf
from sluice.launching.launcher_port import LaunchRequest
from sluice.launching.spark_submit import (
    RunStream,
    SparkConnection,
    ValidateStreams,
    driver_request,
    find_spark_submit,
    run_in_foreground,
    spark_submit_command,
)
from sluice.ledger.connection import open_ledger
from sluice.ledger.run_values import DesiredState, RunObservation, RunState
from sluice.settings import CatalogSettings, ObjectStoreSettings, Settings
from sluice.setup.jars import Jar, JarLock, render_lock

SECRETS = ("planted-password", "planted-credential", "planted-key-id", "planted-access-key")


@pytest.fixture
def make_binary(tmp_path: Path) -> Callable[[str], Path]:
    """Makes an executable file below the test's folder."""

    def make(place: str) -> Path:
        binary = tmp_path / place
        binary.parent.mkdir(parents=True, exist_ok=True)
        binary.write_text("#!/bin/sh\n")
        binary.chmod(0o755)
        return binary

    return make


@pytest.fixture
def spark_submit(make_binary: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `spark-submit` on the PATH, and nothing else."""
    binary = make_binary("on_path/spark-submit")
    monkeypatch.setenv("PATH", str(binary.parent))
    monkeypatch.delenv("SPARK_HOME", raising=False)
    return binary


def test_the_argv_of_a_stream(spark_submit: Path) -> None:
    command = spark_submit_command(
        SparkConnection(master="local[2]"),
        RunStream(stream="flights", run_id="run-1"),
        home=Path("/sluice"),
        conf={"spark.ui.enabled": "false", "spark.driver.memory": "512m"},
        name="sluice flights",
    )
    assert command == (
        str(spark_submit),
        "--master",
        "local[2]",
        "--name",
        "sluice flights",
        "--conf",
        "spark.driver.memory=512m",
        "--conf",
        "spark.ui.enabled=false",
        "/sluice/jobs/run_stream.py",
        "--stream=flights",
        "--run-id=run-1",
    )


def test_the_argv_on_a_cluster(make_binary: Callable[[str], Path], spark_submit: Path) -> None:
    binary = make_binary("opt/spark3-submit")
    command = spark_submit_command(
        SparkConnection(master="yarn", deploy_mode="cluster", spark_binary=str(binary)),
        ValidateStreams(folder="pipelines", streams="flights; rm -rf /"),
        home=Path("/sluice"),
        conf={},
        name="sluice validate",
    )
    assert command == (
        str(binary),
        "--master",
        "yarn",
        "--deploy-mode",
        "cluster",
        "--name",
        "sluice validate",
        "/sluice/jobs/validate_streams.py",
        "--folder=pipelines",
        "--streams=flights; rm -rf /",
    )


def test_the_program_is_looked_for_on_the_path_then_below_spark_home_then_in_pyspark(
    make_binary: Callable[[str], Path], spark_submit: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_home = make_binary("home/bin/spark-submit")
    monkeypatch.setenv("SPARK_HOME", str(in_home.parents[1]))
    assert find_spark_submit("spark-submit") == str(spark_submit)
    monkeypatch.setenv("PATH", "/nowhere")
    assert find_spark_submit("spark-submit") == str(in_home)
    monkeypatch.delenv("SPARK_HOME")
    assert find_spark_submit("spark-submit").endswith("/pyspark/bin/spark-submit")


def test_a_missing_program_is_one_sentence(spark_submit: Path) -> None:
    with pytest.raises(LaunchError, match="spark9-submit is not found: not on the PATH, not below SPARK_HOME"):
        find_spark_submit("spark9-submit")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """A deployment's settings, with secrets."""
    password, credential, key_id, access_key = (SecretStr(secret) for secret in SECRETS)
    return Settings(
        home=Path("/sluice"),
        jars=tmp_path,
        logs=Path("/logs"),
        reports=Path("/reports"),
        ledger_url=password,
        checkpoints="file:///checkpoints",
        catalog=CatalogSettings(uri="http://c", warehouse="s3://w", credential=credential),
        object_store=ObjectStoreSettings(access_key_id=key_id, secret_access_key=access_key),
    )


def test_a_job_in_the_foreground_names_its_failure_where_spark_joins_its_outputs(
    settings: Settings, tmp_path: Path, make_binary: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In client mode the stderr of Python is in the stdout of `spark-submit`."""
    submit = make_binary("spark/bin/spark-submit")
    submit.write_text(f"#!/bin/sh\necho 'WARNING: a JVM' >&2\necho '{FAILURE_MARK}UsageError: boom'\nexit 2\n")
    monkeypatch.setenv("PATH", f"{submit.parent}:/bin:/usr/bin")

    ended = run_in_foreground(
        ValidateStreams(folder="/f", streams="flights"), settings.model_copy(update={"logs": tmp_path / "logs"})
    )

    assert (ended.exit_code, ended.failure) == (2, "UsageError: boom")
    assert ended.log.read_text() == f"WARNING: a JVM\n{FAILURE_MARK}UsageError: boom\n"


NOWHERE = open_ledger("postgresql+psycopg://nobody@nowhere/ledger")
"""It is not asked, as long as drivers have no role of their own."""


def _run() -> RunObservation:
    return RunObservation(
        token=1,
        run_id="0123456789abcdef",
        stream="flights",
        generation=1,
        mode="continuous",
        state=RunState.LAUNCHING,
        desired_state=DesiredState.RUNNING,
        launched_at=datetime(2026, 11, 20, 12, 0, 5, tzinfo=UTC),
        launched_by="a test",
        declaration_digest="d",
    )


def test_the_request_of_a_run_holds_no_secret(spark_submit: Path, settings: Settings) -> None:
    wanted = continuous_stream(engine={"driver_memory": "700 MiB"})
    request = driver_request(
        wanted, _run(), settings=settings, connections=lambda name: SparkConnection(), ledger=NOWHERE
    )
    conf = launch_conf(home=settings.home, jars=settings.jars, engine=wanted.declaration.engine, is_bounded=False)
    assert request.command == spark_submit_command(
        SparkConnection(),
        RunStream(stream="flights", run_id=request.run_id),
        home=settings.home,
        conf=conf,
        name="sluice flights",
    )
    assert request.log_file == Path("/logs/flights/20261120T120005Z-01234567.log")
    assert request.environment["PYSPARK_PYTHON"] == sys.executable
    assert not any(secret in repr((request, request.environment)) for secret in SECRETS)


def test_a_driver_runs_where_the_connection_that_its_stream_names_leads(spark_submit: Path, settings: Settings) -> None:
    known = {
        "spark_default": SparkConnection(master="local[2]"),
        "large_machine": SparkConnection(master="local[16]"),
        "the_cluster": SparkConnection(master="yarn", deploy_mode="cluster"),
    }

    def request(connection: str | None) -> LaunchRequest:
        wanted = continuous_stream(engine={"connection": connection})
        return driver_request(wanted, _run(), settings=settings, connections=known.__getitem__, ledger=NOWHERE)

    here, there, on_the_cluster = request(None), request("large_machine"), request("the_cluster")
    assert (here.connection, _master(here.command)) == (None, "local[2]")
    assert (there.connection, _master(there.command)) == (None, "local[16]")
    assert on_the_cluster.connection == "the_cluster"


def _master(command: tuple[str, ...]) -> str:
    return command[command.index("--master") + 1]


@pytest.mark.parametrize(
    ("master", "declared", "conf"),
    [
        ("local[*]", {"executors": 3, "cores": 2}, {"spark.driver.host": "127.0.0.1"}),
        ("yarn", {}, {}),
        ("yarn", {"executors": 3, "cores": 2}, {"spark.executor.instances": "3", "spark.executor.cores": "2"}),
        (
            "spark://host:7077",
            {"executors": 2, "most_executors": 5},
            {
                "spark.dynamicAllocation.enabled": "true",
                "spark.dynamicAllocation.shuffleTracking.enabled": "true",
                "spark.dynamicAllocation.initialExecutors": "2",
                "spark.dynamicAllocation.minExecutors": "2",
                "spark.dynamicAllocation.maxExecutors": "5",
            },
        ),
        ("k8s://host", {"executor_memory": "1 GiB"}, {"spark.executor.memory": "1024m"}),
    ],
)
def test_executors_are_granted_where_there_are_any(
    master: str, declared: dict[str, object], conf: dict[str, str]
) -> None:
    engine = continuous_stream(engine=declared).declaration.engine
    found = launch_conf(home=Path("/h"), jars=Path("/j"), engine=engine, is_bounded=False, master=master)
    words = ("spark.executor.", "spark.dynamicAllocation.", "spark.driver.host", "spark.decommission")
    granted = {name: value for name, value in found.items() if name.startswith(words)}
    assert ("spark.executor.extraClassPath" in granted) is not master.startswith("local")
    granted.pop("spark.executor.extraClassPath", None)
    assert granted.pop("spark.executor.extraJavaOptions", "in the driver") == (
        "in the driver" if master.startswith("local") else "-Duser.timezone=UTC -XX:-DontCompileHugeMethods"
    )
    assert granted == conf


@pytest.mark.parametrize("is_bounded", [True, False])
def test_no_process_of_an_application_takes_its_host_s_time_zone(is_bounded: bool) -> None:
    conf = launch_conf(home=Path("/h"), jars=Path("/j"), engine=EngineDeclaration(), is_bounded=is_bounded)
    assert "-Duser.timezone=UTC" in conf["spark.driver.extraJavaOptions"].split()
    assert conf["spark.executorEnv.TZ"] == "UTC"


@pytest.mark.parametrize(
    ("is_bounded", "compiler"),
    [
        (True, {"TieredStopAtLevel"}),
        (False, {f"Tier4{name}Threshold" for name in ("Invocation", "MinInvocation", "Compile", "BackEdge")}),
    ],
)
def test_the_optimizing_compiler_comes_late_to_streams_and_never_to_what_ends_soon(
    is_bounded: bool, compiler: set[str]
) -> None:
    conf = launch_conf(home=Path("/h"), jars=Path("/j"), engine=EngineDeclaration(), is_bounded=is_bounded)

    options = conf["spark.driver.extraJavaOptions"].split()

    assert {word.removeprefix("-XX:").partition("=")[0] for word in options if "Tier" in word} == compiler
    assert ("-XX:ReservedCodeCacheSize=240m" in options) is is_bounded, "the quick compiler alone gets 48 MB of it"


@pytest.mark.parametrize("is_bounded", [True, False])
@pytest.mark.parametrize("master", ["local[*]", "yarn"])
def test_every_jvm_compiles_the_long_methods_that_spark_generates(is_bounded: bool, master: str) -> None:
    engine = EngineDeclaration()
    conf = launch_conf(home=Path("/h"), jars=Path("/j"), engine=engine, is_bounded=is_bounded, master=master)

    of_jvms = [options.split() for name, options in conf.items() if name.endswith(".extraJavaOptions")]

    assert len(of_jvms) == (1 if master.startswith("local") else 2)
    assert all("-XX:-DontCompileHugeMethods" in options for options in of_jvms)


@pytest.mark.parametrize(
    ("name", "value", "is_hidden"),
    [
        ("spark.yarn.appMasterEnv.SLUICE_LEDGER_URL", "x", True),
        ("spark.yarn.appMasterEnv.SLUICE_OBJECT_STORE__ACCESS_KEY_ID", "x", True),
        ("spark.executorEnv.REG__URL", "https://user:Pl4nted@host/x", True),
        ("spark.hadoop.fs.s3a.access_key", "x", True),
        ("spark.yarn.appMasterEnv.TZ", "UTC", False),
        ("spark.submit.pyFiles", "/opt/sluice/jobs/sluice_spark.zip", False),
        ("spark.eventLog.dir", "s3a://lake/logs", False),
    ],
)
def test_spark_shows_no_setting_that_may_be_secret(name: str, value: str, is_hidden: bool) -> None:
    conf = launch_conf(home=Path("/h"), jars=Path("/j"), engine=EngineDeclaration(), is_bounded=False)
    pattern = re.compile(conf["spark.redaction.regex"])

    assert any(pattern.search(text) for text in (name, value)) is is_hidden


def test_a_process_of_spark_gets_neither_airflow_s_variables_nor_another_role_of_the_ledger() -> None:
    kept = {"SLUICE_LEDGER_URL": "own", "SLUICE_LEDGER_DRIVER_URLS": "another name", "PATH": "p", "MY_AIRFLOW": "x"}
    withheld = ["SLUICE_LEDGER_OWNER_URL", "SLUICE_LEDGER_DRIVER_URL", "AIRFLOW__CORE__FERNET_KEY", "_AIRFLOW_X"]
    environ = kept | dict.fromkeys([*withheld, "airflow_conn_x"], "secret")
    assert job_environment(environ) == kept
    assert job_environment(environ, own={"SLUICE_LEDGER_URL": "with a pass"})["SLUICE_LEDGER_URL"] == "with a pass"


@pytest.fixture
def locked(tmp_path: Path) -> Path:
    """The folder of the jars of a lock, which lies beside it."""
    contents = {"spark": b"iceberg", "delta": b"delta", "kafka": b"kafka"}
    lock = JarLock(
        ivy_xml_sha256="",
        class_paths={
            name: (
                Jar(
                    organisation="o",
                    name=name,
                    revision="1",
                    size_bytes=len(content),
                    sha256=hashlib.sha256(content).hexdigest(),
                ),
            )
            for name, content in contents.items()
        },
    )
    (tmp_path / "ivy.lock").write_text(render_lock(lock))
    for name, content in contents.items():
        folder = tmp_path / "jars" / lock.key() / name
        folder.mkdir(parents=True)
        (folder / f"{name}-1.jar").write_bytes(content)
    return tmp_path / "jars" / lock.key()


def test_the_class_path_is_that_of_the_lock(locked: Path, tmp_path: Path) -> None:
    on_it = class_path(locked, home=tmp_path).split(":")
    assert [Path(jar).name for jar in on_it] == ["spark-1.jar", "delta-1.jar"]


@pytest.mark.parametrize("change", ["added", "changed", "removed"])
def test_a_class_path_that_somebody_wrote_into_starts_nothing(locked: Path, tmp_path: Path, change: str) -> None:
    """The cache is shared by all clones of a user, and a transformation can write there."""
    jar = locked / "spark" / "spark-1.jar"
    if change == "added":
        (locked / "spark" / "a.jar").write_bytes(b"evil")
    elif change == "changed":
        jar.write_bytes(b"icebarg")
    else:
        jar.unlink()
    with pytest.raises(LaunchError, match=r"are not those of ivy\.lock"):
        class_path(locked, home=tmp_path)
    other = locked.rename(locked.parent / "of-the-deployment")
    assert class_path(other, home=tmp_path), "another folder is the deployment's own"
