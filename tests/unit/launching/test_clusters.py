"""Which launcher a stream has, and what a connection to a cluster must say."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from sluice.errors import LaunchError, SettingsError
from sluice.launching.cluster_launcher import ClusterLauncher, cluster_launcher
from sluice.launching.launcher_port import DriverTag, LaunchRequest
from sluice.launching.launchers import LauncherByConnection
from sluice.launching.spark_submit import SparkConnection, connection_in
from sluice.launching.submission import Submission, driver_environment, private_properties, submit_by_program
from sluice.launching.yarn import yarn_conf
from sluice.ledger.connection import Ledger, open_ledger
from sluice.ledger.run_values import DriverExit
from sluice.processes.process_identity import ProcessIdentity, ProcessState
from sluice.settings import SETTINGS_FILE, SETTINGS_FILE_VARIABLE, take_settings_file

YARN = SparkConnection(master="yarn", deploy_mode="cluster", resource_managers=("http://rm:8088",))
TAG = DriverTag(stream="flights", token=7, run_id="8c1d7f0e-3b66-4d0a-9a54-0c3a1d0e5f42", launched_at_ms=1795290965953)
NASTY = 'a"b$c`d\\e{"f": {"g": {{}}}}'


@dataclass(slots=True)
class Somewhere:
    """A launcher that only records its calls."""

    name: str
    asked: list[str] = field(default_factory=list)

    def launch(self, request: LaunchRequest) -> ProcessIdentity:
        """Start nothing."""
        self.asked.append(request.run_id)
        return ProcessIdentity(host=self.name, pid=0, started_at_seconds=0.0)

    def observe(self, process: ProcessIdentity) -> ProcessState:
        """Alive."""
        self.asked.append(process.host)
        return ProcessState.ALIVE

    def exit_of(self, process: ProcessIdentity) -> DriverExit | None:
        """Not known."""
        self.asked.append(process.host)
        return None

    def stop(self, process: ProcessIdentity, *, grace_seconds: float) -> ProcessState:
        """Gone."""
        self.asked.append(f"{process.host} {grace_seconds}")
        return ProcessState.GONE


def test_each_driver_is_left_to_where_it_is() -> None:
    local, cluster = Somewhere("here"), Somewhere("spark_yarn")
    launcher = LauncherByConnection(local=local, cluster={"spark_yarn": cluster}.__getitem__)
    request = LaunchRequest(run_id="run-1", stream="flights", command=("true",), log_file=Path("log"))
    assert launcher.launch(request).host == "here"
    assert launcher.launch(replace(request, run_id="run-2", connection="spark_yarn")).host == "spark_yarn"
    process = ProcessIdentity(host="a-host", pid=1, started_at_seconds=0.0)
    application = ProcessIdentity(host="spark_yarn", pid=0, started_at_seconds=0.0, application=TAG.text)
    for one in (process, application):
        assert launcher.observe(one) is ProcessState.ALIVE
        assert launcher.exit_of(one) is None
        assert launcher.stop(one, grace_seconds=1.0) is ProcessState.GONE
    assert local.asked == ["run-1", "a-host", "a-host", "a-host 1.0"]
    assert cluster.asked == ["run-2", "spark_yarn", "spark_yarn", "spark_yarn 1.0"]


def test_a_driver_whose_connection_is_gone_is_unknown_and_none_is_launched() -> None:
    def absent(name: str) -> Somewhere:
        raise SettingsError(f"Airflow has no connection {name}.", next_step="Create it.")

    launcher = LauncherByConnection(local=Somewhere("here"), cluster=absent)
    application = ProcessIdentity(host="spark_yarn", pid=0, started_at_seconds=0.0, application=TAG.text)
    assert launcher.observe(application) is ProcessState.UNKNOWN
    assert launcher.exit_of(application) is None
    assert launcher.stop(application, grace_seconds=1.0) is ProcessState.UNKNOWN
    request = LaunchRequest(
        run_id="run-1", stream="flights", command=("true",), log_file=Path("log"), connection="spark_yarn"
    )
    with pytest.raises(LaunchError, match="was not started: Airflow has no connection spark_yarn") as refused:
        launcher.launch(request)
    assert refused.value.next_step == "Create it."


@pytest.mark.parametrize(
    ("connection", "problem"),
    [
        (replace(YARN, resource_managers=()), "does not have the address of YARN's ResourceManager"),
        (replace(YARN, resource_managers=("rm:8088",)), "names the ResourceManager rm:8088, which is not an http"),
        (replace(YARN, deploy_mode="client"), "has the master yarn and the deploy-mode client"),
        (replace(YARN, master="spark://host:7077"), "has the master spark://host:7077"),
        (
            replace(YARN, master="k8s://https://host:443"),
            "leads to Kubernetes in cluster mode, which does not",
        ),
    ],
)
def test_a_connection_that_cannot_be_used_is_one_sentence(connection: SparkConnection, problem: str) -> None:
    with pytest.raises(SettingsError, match=problem) as refused:
        launcher_of(connection)
    assert "spark_yarn" in refused.value.message
    assert refused.value.next_step


def test_the_password_of_the_ledger_is_in_no_text_of_the_launcher() -> None:
    assert "planted" not in repr(launcher_of(YARN))


def launcher_of(connection: SparkConnection) -> ClusterLauncher:
    """The launcher of a connection; nothing is connected."""
    url = "postgresql+psycopg://sluice:planted@127.0.0.1:9/none"
    with open_ledger(url) as ledger:
        assert isinstance(ledger, Ledger)
        return cluster_launcher(
            "spark_yarn", connection, ledger=ledger, ledger_url=url, submit=submit_by_program(connection)
        )


def test_a_command_without_the_connection_does_not_guess() -> None:
    assert connection_in({}, "spark_default") == SparkConnection()
    with pytest.raises(SettingsError, match="AIRFLOW_CONN_SPARK_YARN is not set"):
        connection_in({}, "spark_yarn")
    written = {"AIRFLOW_CONN_SPARK_YARN": json.dumps({"conn_type": "spark", "host": "yarn"})}
    assert connection_in(written, "spark_yarn").master == "yarn"


def test_the_settings_of_yarn_carry_the_tag_and_the_environment_and_forbid_a_second_attempt() -> None:
    environment = {"SLUICE_RUN_ID": TAG.run_id, "NASTY": NASTY, "PYSPARK_PYTHON": "/venv/bin/python"}
    conf = yarn_conf(TAG, environment, Path("/tmp/sluice-1.json"))  # noqa: S108  # of no file
    assert conf["spark.yarn.tags"].split(",") == [
        "sluice-stream:flights",
        "sluice-token:7",
        f"sluice-run:{TAG.run_id}",
        "sluice-launch:1795290965953",
    ]
    assert conf["spark.yarn.maxAppAttempts"] == "1"
    assert conf["spark.yarn.submit.waitAppCompletion"] == "false"
    assert conf["spark.executorEnv.PYSPARK_PYTHON"] == "/venv/bin/python"
    assert conf["spark.yarn.dist.files"] == "file:///tmp/sluice-1.json#sluice-settings.json"
    assert "spark.executorEnv.NASTY" not in conf
    written = conf["spark.yarn.appMasterEnv.NASTY"]
    assert "{{" not in written
    assert "}}" not in written, "YARN replaces its marks of a variable"
    script = f'export X="{written}"; printf %s "$X"'  # as a node writes it
    said = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout  # noqa: S603, S607
    assert said == NASTY


def test_only_what_is_of_this_deployment_goes_along() -> None:
    environ = {"SLUICE_HOME": "/sluice", "SLUICE_STACK": "x", "AIRFLOW__CORE__FERNET_KEY": "planted", "PATH": "/bin"}
    own = {"SLUICE_HOME": "/elsewhere", "SLUICE_RUN_ID": "run-1"}
    assert driver_environment(environ, own=own) == own


def test_the_private_file_is_gone_when_the_submission_fails() -> None:
    seen: list[Path] = []

    def fail() -> None:
        with private_properties({"a": "b"}) as file:
            assert file.read_text() == "a=b\n"
            seen.append(file)
            raise LaunchError("boom")

    with pytest.raises(LaunchError, match="boom"):
        fail()
    assert not seen[0].exists()


def test_a_command_submits_by_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "spark-submit"
    program.write_text(f"#!/bin/sh\nprintf '%s\\n' \"$@\" > {tmp_path}/argv\necho said\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    submission = Submission(
        connection="spark_yarn",
        name="sluice flights",
        application="/sluice/jobs/run_stream.py",
        arguments=("--run-id=run-1",),
        properties_file=tmp_path / "properties",
        log_file=tmp_path / "logs" / "log",
    )
    submit_by_program(replace(YARN, queue="streams"))(submission)
    assert (tmp_path / "argv").read_text().splitlines() == [
        *("--master", "yarn", "--deploy-mode", "cluster", "--name", "sluice flights", "--queue", "streams"),
        *("--properties-file", str(tmp_path / "properties"), "/sluice/jobs/run_stream.py", "--run-id=run-1"),
    ]
    assert submission.log_file.read_text() == "said\n"
    program.write_text("#!/bin/sh\nexit 3\n")
    with pytest.raises(LaunchError, match="spark-submit ended with 3") as refused:
        submit_by_program(YARN)(submission)
    assert str(submission.log_file) in refused.value.next_step


def test_the_driver_of_a_cluster_takes_its_settings_from_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLUICE_NASTY", "of before")
    take_settings_file()
    assert os.environ["SLUICE_NASTY"] == "of before", "elsewhere there is no such file"
    monkeypatch.setenv(SETTINGS_FILE_VARIABLE, SETTINGS_FILE)
    Path(SETTINGS_FILE).write_text(json.dumps({"SLUICE_NASTY": NASTY}))
    take_settings_file()
    assert os.environ["SLUICE_NASTY"] == NASTY
    Path(SETTINGS_FILE).write_text("planted")
    with pytest.raises(SettingsError, match=r"sluice-settings\.json, the file with .* cannot be read") as refused:
        take_settings_file()
    assert "planted" not in str(refused.value)
