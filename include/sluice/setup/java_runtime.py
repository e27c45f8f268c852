"""Find a Java that Spark, Hadoop and Kafka support, and keep the archive of the classes that Spark's JVM loads.

The archive saves 40 % of the processor time of a Spark application's start; decision 0006 has the measurements. It lies
inside the environment it belongs to, since it is valid for that environment's class path alone. The JVM ignores an
archive that does not fit (`-Xshare:auto`).
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from sluice.errors import PrerequisiteError
from sluice.setup.command_runner import CommandResult, CommandRunner, Progress

OLDEST_JAVA = 17
"""Spark 4 and Kafka 4 are compiled for it."""

NEWEST_JAVA = 23
"""Java 24 removed `Subject.getSubject`, which Hadoop 3.4 calls: on it Spark ends with "getSubject is not supported"."""

JAVA_FOLDERS = (
    "/usr/lib/jvm",
    "/usr/lib64/jvm",
    "/usr/java",
    "/opt",
    "/opt/java",
    "~/.sdkman/candidates/java",
    "~/.jdks",
)
"""The folders in which distributions, installers and version managers have one folder for each Java."""

ARCHIVE_NAME = "spark-classes.jsa"
"""The archive's name in the environment's folder (`sys.prefix`), where `sluice.launching.launch_settings` finds it."""

_SILENCE_SECONDS = 120.0
"""Recording takes half a minute on 2 idle cores, and minutes on busy ones. What neither writes nor computes for so long
hangs, and the machine continues without an archive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JavaRuntime:
    """An installed Java: its folder and its full version, for example 17.0.15."""

    home: Path
    version: str

    @property
    def feature_version(self) -> int:
        """The number of the release: 17 for 17.0.15, 8 for 1.8.0_402."""
        return int(self.version.removeprefix("1.").split(".")[0].split("-")[0].split("+")[0].split("_")[0])

    def is_supported(self) -> bool:
        """Whether every program of Sluice runs on it."""
        return OLDEST_JAVA <= self.feature_version <= NEWEST_JAVA

    def __str__(self) -> str:
        return f"Java {self.version} in {self.home}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JavaSearch:
    """The Javas that a search found, in the order of preference."""

    found: tuple[JavaRuntime, ...]

    def supported(self) -> JavaRuntime | None:
        """The first supported Java; None when there is none."""
        return next((java for java in self.found if java.is_supported()), None)

    def missing(self, reason: str) -> PrerequisiteError:
        """The error for a machine without a supported Java.

        Parameters
        ----------
        reason: why none can be installed, as half a sentence.
        """
        seen = f"found only {', '.join(map(str, self.found))}" if self.found else "found none"
        return PrerequisiteError(
            f"Sluice needs Java {OLDEST_JAVA} to {NEWEST_JAVA} and {seen}; {reason}.",
            next_step="Install Java 17 (Debian, Ubuntu: apt install openjdk-17-jre-headless; Fedora: dnf install "
            "java-21-openjdk-headless) or set JAVA_HOME to one, then run the command again.",
        )


def parse_java_properties(output: str) -> JavaRuntime | None:
    """Read the output of `java -XshowSettings:properties -version`; None for any other text.

    Source: https://docs.oracle.com/en/java/javase/17/docs/specs/man/java.html
    """
    home = re.search(r"^\s*java\.home = (\S.*)$", output, re.MULTILINE)
    version = re.search(r"^\s*java\.version = (\d\S*)$", output, re.MULTILINE)
    if home is None or version is None:
        return None
    return JavaRuntime(home=Path(home.group(1)), version=version.group(1))


def java_programs(*, environment: Mapping[str, str], folders: Iterable[str] = JAVA_FOLDERS) -> tuple[Path, ...]:
    """The Java programs of this machine, the user's choice first: JAVA_HOME, PATH, then the usual folders.

    Parameters
    ----------
    environment: the environment variables with the user's choice.
    folders: folders that hold one folder for each Java. The lowest name comes first, since 17 is tested most.
    """
    programs: list[Path] = []
    if java_home := environment.get("JAVA_HOME"):
        programs.append(Path(java_home) / "bin" / "java")
    if on_path := shutil.which("java", path=environment.get("PATH", "")):
        programs.append(Path(on_path))
    for folder in folders:
        programs.extend(sorted(Path(folder).expanduser().glob("*/bin/java")))
    return tuple(dict.fromkeys(program.resolve() for program in programs if program.is_file()))


def search_java(
    *, environment: Mapping[str, str], runner: CommandRunner, folders: Iterable[str] = JAVA_FOLDERS
) -> JavaSearch:
    """Run the Java programs one after the other, until one reports a supported version.

    Parameters
    ----------
    environment: the environment variables with the user's choice.
    runner: starts the programs.
    folders: folders that hold one folder for each Java.
    """
    found: list[JavaRuntime] = []
    for program in java_programs(environment=environment, folders=folders):
        java = ask_java(program, runner=runner)
        if java is None:
            continue
        found.append(java)
        if java.is_supported():
            break
    return JavaSearch(found=tuple(found))


def ask_java(program: Path, *, runner: CommandRunner) -> JavaRuntime | None:
    """The Java behind a program; None when the program does not run or is not a Java."""
    try:
        result = runner.run([program, "-XshowSettings:properties", "-version"])
    except PermissionError:
        return None
    return parse_java_properties(result.output) if result.is_success() else None


def provide_class_archive(
    root: Path, *, java: JavaRuntime, jars: Path, runner: CommandRunner, progress: Progress
) -> None:
    """Make the class archive when there is none for this Java, these jars and this environment.

    Every job works without it, so a failure is reported and not raised.

    Parameters
    ----------
    root: the project's root.
    java: the Java that runs the jobs.
    jars: the folder of the locked jars.
    runner: starts programs.
    progress: reports what is done.
    """
    archive = root / ".venv" / ARCHIVE_NAME
    stamp = archive.with_suffix(".stamp")
    expected = archive_stamp(root, java=java, jars=jars)
    if stamp.is_file() and stamp.read_text() == expected:
        return
    progress.report("Archiving Spark's classes, which makes every later start of Spark a third faster")
    archive.unlink(missing_ok=True)
    for leftover in archive.parent.glob("spark-classes.partial-*"):  # of a bootstrap that was killed
        leftover.unlink()
    partial = archive.with_name(f"spark-classes.partial-{os.getpid()}.jsa")
    try:
        result = _record(root, into=partial, java=java, jars=jars, runner=runner)
        if result.is_success() and partial.is_file():
            partial.replace(archive)
        else:
            progress.report(f"Spark's classes could not be archived, so Spark starts slower: {result.explanation()}")
            progress.report(f"Remove {stamp.relative_to(root)} to try it again")
    finally:
        partial.unlink(missing_ok=True)  # gone already when all went well
    stamp.write_text(expected)


def _record(root: Path, *, into: Path, java: JavaRuntime, jars: Path, runner: CommandRunner) -> CommandResult:
    return runner.run(
        [root / ".venv" / "bin" / "python", "-m", "sluice.launching.record_class_archive", into],
        environment={"JAVA_HOME": str(java.home), "SLUICE_JARS": str(jars)},
        directory=root,
        silence_seconds=_SILENCE_SECONDS,
    )


def archive_stamp(root: Path, *, java: JavaRuntime, jars: Path) -> str:
    """A hash of all that the archive depends on: Java, jars, pyspark, the project's folder and the recording job."""
    pyspark = sorted(path.name for path in (root / ".venv").glob("lib/python3*/site-packages/pyspark-*.dist-info"))
    digest = hashlib.sha256(f"{java} {jars} {pyspark} {root}".encode())
    digest.update((root / "jobs" / "load_classes.py").read_bytes())
    return digest.hexdigest()
