"""The programs that the stack runs: Java, the jars, and those of the installed packages."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sluice.errors import StackError
from sluice.setup.command_runner import CommandRunner
from sluice.setup.java_runtime import search_java


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """Where the programs lie.

    Parameters
    ----------
    python: the interpreter of this environment.
    java_home: a supported Java.
    jars: the folder that holds one folder of jars for each class path of ivy.xml.
    spark_home: the folder of the installed pyspark.
    """

    python: Path
    java_home: Path
    jars: Path
    spark_home: Path

    @property
    def java(self) -> Path:
        """The Java program."""
        return self.java_home / "bin" / "java"


def find_tools(home: Path) -> Tools:
    """Find all programs.

    Parameters
    ----------
    home: the project's root, whose `.sluice/bootstrap.json` holds what the bootstrap found.

    Raises
    ------
    PrerequisiteError: when there is no supported Java.
    StackError: when the jars are missing.
    """
    bootstrap = _read_bootstrap(home)
    return Tools(
        python=Path(sys.executable),
        java_home=_find_java_home(bootstrap.get("java_home")),
        jars=_find_jars(bootstrap.get("jars")),
        spark_home=package_folder("pyspark"),
    )


def tools_of(environment: Mapping[str, str]) -> Tools:
    """The programs that a stack was started with, from its environment."""
    return Tools(
        python=Path(environment["PYSPARK_PYTHON"]),
        java_home=Path(environment["JAVA_HOME"]),
        jars=Path(environment["SLUICE_JARS"]),
        spark_home=Path(environment["SPARK_HOME"]),
    )


def package_folder(package: str) -> Path:
    """The folder of an installed package, found without importing it.

    Raises
    ------
    StackError: when it is not installed.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise StackError(
            f"The Python package {package} is not installed.",
            next_step="Install the project with its extra `local`, for example `uv sync --extra local`.",
        )
    return Path(next(iter(spec.submodule_search_locations)))


def program(name: str) -> Path:
    """The path of a program that an installed package has put beside the interpreter.

    Raises
    ------
    StackError: when it is not there.
    """
    path = Path(sys.executable).parent / name
    if not path.exists():
        raise StackError(
            f"The program {name} is not installed beside {sys.executable}.",
            next_step="Install the project with its extra `local`, for example `uv sync --extra local`.",
        )
    return path


def _read_bootstrap(home: Path) -> dict[str, str]:
    path = home / ".sluice" / "bootstrap.json"
    return dict(json.loads(path.read_text())) if path.exists() else {}


def _find_jars(recorded: str | None) -> Path:
    jars = os.environ.get("SLUICE_JARS") or recorded
    if not jars:
        raise StackError(
            "The jars of Spark and Kafka are not resolved: neither SLUICE_JARS nor the bootstrap names their folder.",
            next_step="Run `make setup`, which resolves them.",
        )
    for class_path in ("spark", "kafka"):
        if not any((Path(jars) / class_path).glob("*.jar")):
            raise StackError(
                f"{Path(jars) / class_path} holds no jar.", next_step="Run `make setup`, which resolves them."
            )
    return Path(jars).resolve()


def _find_java_home(recorded: str | None) -> Path:
    """The Java that the user chose when it is supported, otherwise the one that the bootstrap found."""
    runner = CommandRunner()
    chosen = search_java(environment=os.environ, runner=runner, folders=())
    found = search_java(environment={"JAVA_HOME": recorded or ""}, runner=runner, folders=())
    java = chosen.supported() or found.supported()
    if java is None:
        raise chosen.missing("neither JAVA_HOME, PATH nor `make setup` names another")
    return java.home
