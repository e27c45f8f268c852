"""Versions stand in one place, `pyproject.toml` for Python and `ivy.xml` for Java, and fit together."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from tests.architecture.committed_files import committed_files
from tests.architecture.source_modules import ROOT

from sluice.setup.jars import parse_lock
from sluice.setup.python_environment import supported_pythons
from sluice.stack.bootstrap import OLDEST_PYTHON

PYPROJECT = ROOT / "pyproject.toml"


def python_pins() -> dict[str, str]:
    """Every package that `pyproject.toml` pins to one version."""
    project = tomllib.loads(PYPROJECT.read_text())
    extras = project["project"]["optional-dependencies"].values()
    groups = project["dependency-groups"].values()
    words = [*project["project"]["dependencies"], *(word for words in [*extras, *groups] for word in words)]
    found = (re.match(r"([\w.-]+)(?:\[[\w,]+\])?==([\w.]+)$", word) for word in words)
    return {match.group(1): match.group(2) for match in found if match}


def java_pins() -> dict[str, str]:
    """The revision of every artifact that `ivy.xml` names; one that stands on two class paths has one revision here."""
    dependencies = ElementTree.parse(ROOT / "ivy.xml").getroot().iter("dependency")  # noqa: S314  # our own file, no entity in it
    return {dependency.attrib["name"]: dependency.attrib["rev"] for dependency in dependencies}


def pyspark_jar_version(pattern: str) -> str:
    """The version of a jar that pyspark brings, by its file name with `*` for the version."""
    spec = importlib.metadata.distribution("pyspark").locate_file("pyspark/jars")
    (jar,) = Path(str(spec)).glob(pattern)
    before, after = pattern.split("*")
    return jar.name.removeprefix(before).removesuffix(after)


def test_spark_on_the_class_path_is_the_installed_one() -> None:
    installed = importlib.metadata.version("pyspark")
    family = ".".join(installed.split(".")[:2])
    java = java_pins()

    assert python_pins()["pyspark"] == installed
    assert java["spark-sql-kafka-0-10_2.13"] == installed
    assert f"iceberg-spark-runtime-{family}_2.13" in java
    assert f"delta-spark_{family}_2.13" in java
    assert java["spark-avro_2.13"].startswith(f"{family}.")
    assert java["spark-hadoop-cloud_2.13"].startswith(f"{family}.")
    assert java["spark-token-provider-kafka-0-10_2.13"].startswith(f"{family}.")


def test_companions_of_sparks_own_jars_have_their_versions() -> None:
    java = java_pins()
    scala = {name.rpartition("_")[2] for name in java if re.search(r"_2\.\d+$", name)}

    assert java["hadoop-aws"] == pyspark_jar_version("hadoop-client-api-*.jar")
    assert scala == {pyspark_jar_version("scala-library-*.jar").rpartition(".")[0]}
    assert java["iceberg-aws-bundle"] == java["iceberg-spark-runtime-4.1_2.13"]
    assert java["delta-storage"] == java["delta-spark_4.1_2.13"]
    assert java["apache-client"] == java["s3-transfer-manager"]


def test_pyspark_client_is_not_installed() -> None:
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("pyspark-client")


def test_jar_lock_is_up_to_date() -> None:
    lock = parse_lock((ROOT / "ivy.lock").read_text())
    locked = {(jar.name, jar.revision) for jar in lock.jars()}

    assert lock.ivy_xml_sha256 == hashlib.sha256((ROOT / "ivy.xml").read_bytes()).hexdigest(), "run `make lock`"
    assert set(java_pins().items()) <= locked


def uv(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the uv of the environment on this project."""
    command = [str(Path(sys.executable).parent / "uv"), *arguments, "--project", str(ROOT)]
    environment = {**os.environ, "UV_PYTHON": sys.executable}
    return subprocess.run(command, capture_output=True, text=True, env=environment)  # noqa: S603  # our own command


def test_package_lock_is_up_to_date() -> None:
    answer = uv("lock", "--check", "--offline")
    if answer.returncode != 0 and "needs to be updated" not in answer.stderr:
        # What uv must know of the packages is in its cache only if it ever resolved them on this machine.
        answer = uv("lock", "--check")
    if answer.returncode != 0 and "needs to be updated" not in answer.stderr:
        pytest.skip(f"uv can check the lock neither from its cache nor from the network: {answer.stderr[-200:]}")

    assert answer.returncode == 0, f"{answer.stderr} Run `make lock`."


def test_uv_that_makes_the_environment_is_the_locked_one() -> None:
    assert uv("--version").stdout.split()[1] == python_pins()["uv"]


def test_supported_python_is_declared_in_one_place() -> None:
    oldest, _ = supported_pythons(PYPROJECT.read_text())
    tools = tomllib.loads(PYPROJECT.read_text())["tool"]

    assert oldest == OLDEST_PYTHON
    assert tools["mypy"]["python_version"] == "{}.{}".format(*OLDEST_PYTHON)
    assert tools["ruff"]["target-version"] == "py{}{}".format(*OLDEST_PYTHON)


def test_no_other_file_repeats_a_version() -> None:
    pins = {version for version in [*python_pins().values(), *java_pins().values()] if version.count(".") > 1}
    repeated = re.compile("|".join(rf"(?<![\d.]){re.escape(version)}(?![\d.]|\w)" for version in sorted(pins)))
    places = [
        path
        for path in committed_files()
        if (path.suffix == ".py" or path.name in {"Makefile", "run"}) and "tests" not in path.relative_to(ROOT).parts
    ]

    wrong = [
        f"{path.relative_to(ROOT)}:{number} {line.strip()}"
        for path in places
        if any(version in path.read_text() for version in pins)  # much faster than the pattern
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if repeated.search(line) and "://" not in line  # a documentation that was read has its version in its address
    ]

    assert wrong == []


def test_make_is_all_that_the_continuous_integration_calls() -> None:
    assert shutil.which("make") is not None
    assert re.search(r"^.*timeout .* make test\b", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    assert "make test" in (ROOT / "README.md").read_text()
