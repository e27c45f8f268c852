"""Which items share an application, and what makes an application outdated."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import SecretStr
from tests.fixtures.sample_settings import sample_settings

from sluice.declarations.run_declaration import EngineDeclaration
from sluice.launching.spark_submit import SparkConnection
from sluice.settings import Settings
from sluice.work.pools import LINGER_SECONDS, EngineProfile, deployment_digest, files_digest, pool_of

ENVIRON = {"PATH": "/usr/bin", "TZ": "UTC"}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """A deployment with a stream and a file that its pipelines link to."""
    pipelines, elsewhere = tmp_path / "pipelines", tmp_path / "elsewhere"
    for folder in (pipelines, elsewhere, tmp_path / "jobs"):
        folder.mkdir()
    (pipelines / "one.sql").write_text("SELECT 1")
    (elsewhere / "shared.py").write_text("ONE = 1")
    (pipelines / "linked").symlink_to(elsewhere)
    return sample_settings(tmp_path).model_copy(update={"home": tmp_path, "pipelines": pipelines})


def same_size_and_time(file: Path, text: str) -> None:
    """Write other content of the same length, and put the time of change back."""
    before = file.stat()
    assert len(text) == before.st_size
    file.write_text(text)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize(
    "change",
    [
        lambda settings: same_size_and_time(settings.pipelines / "one.sql", "SELECT 2"),
        lambda settings: (settings.pipelines.parent / "elsewhere" / "shared.py").write_text("ONE = 2"),
        lambda settings: (settings.pipelines / "two.sql").write_text("SELECT 1"),
        lambda settings: (settings.pipelines / "one.sql").rename(settings.pipelines / "renamed.sql"),
        lambda settings: (settings.home / "jobs" / "new.py").write_text(""),
    ],
    ids=["same size and time", "behind a link", "a new file", "another name", "a job"],
)
def test_a_change_of_the_files_is_another_deployment(change: Callable[[Settings], object], settings: Settings) -> None:
    before = files_digest(settings)
    change(settings)
    assert files_digest(settings) != before


@pytest.mark.parametrize("name", ["TZ", "PYTHONPATH", "AWS_REGION", "WHAT_A_TRANSFORMATION_READS"])
def test_another_environment_is_another_deployment(name: str, settings: Settings) -> None:
    assert deployment_digest(settings, ENVIRON) != deployment_digest(settings, {**ENVIRON, name: "other"})


def test_another_secret_is_another_deployment_and_is_not_shown(settings: Settings) -> None:
    def with_key(key: str) -> Settings:
        store = settings.object_store.model_copy(update={"secret_access_key": SecretStr(key)})
        return settings.model_copy(update={"object_store": store})

    one, other = with_key("a secret of many characters"), with_key("another secret of many characters")
    digest = deployment_digest(other, ENVIRON)
    assert digest != deployment_digest(one, ENVIRON)
    assert "secret" not in digest


@pytest.mark.parametrize(
    "name", ["PWD", "TERM", "SSH_CONNECTION", "_", "HOSTNAME", "GPG_TTY", "AIRFLOW_CTX_DAG_ID", "SLUICE_RUN_ID"]
)
def test_another_terminal_or_task_is_the_same_deployment(name: str, settings: Settings) -> None:
    assert deployment_digest(settings, ENVIRON) == deployment_digest(settings, {**ENVIRON, name: "other"})


def test_the_digest_says_of_which_files_it_is(settings: Settings) -> None:
    assert deployment_digest(settings, ENVIRON).startswith(f"{files_digest(settings)}-")


@pytest.mark.parametrize(
    "other",
    [
        EngineProfile(engine=EngineDeclaration(driver_memory=1024**3)),
        EngineProfile(engine=EngineDeclaration(cores=3)),
        EngineProfile(with_delta=True),
        EngineProfile(repeats_tasks=False),
        EngineProfile(ui_of="flights"),
    ],
    ids=["memory", "cores", "delta", "tries", "ui"],
)
def test_other_engine_settings_are_another_pool(other: EngineProfile, settings: Settings) -> None:
    here = SparkConnection()
    assert pool_of(EngineProfile(), settings, here).name != pool_of(other, settings, here).name


def test_another_connection_is_another_pool(settings: Settings) -> None:
    there = SparkConnection(master="local[1]")
    assert pool_of(EngineProfile(), settings, SparkConnection()).name != pool_of(EngineProfile(), settings, there).name


def test_a_kept_application_has_the_pool_of_the_others_and_lingers_longer(settings: Settings) -> None:
    kept = EngineProfile(engine=EngineDeclaration(kept_minutes=10))
    assert pool_of(kept, settings, SparkConnection()).name == pool_of(EngineProfile(), settings, SparkConnection()).name
    assert (kept.linger_seconds, EngineProfile().linger_seconds) == (600, LINGER_SECONDS)


@pytest.mark.parametrize("name", [".#one.sql", "loop"])
def test_a_link_to_nothing_is_no_file_of_the_deployment(name: str, settings: Settings) -> None:
    """An editor leaves one beside each file that is open in it."""
    before = files_digest(settings)
    (settings.pipelines / name).symlink_to("nowhere" if name.startswith(".") else settings.pipelines)
    assert files_digest(settings) == before
