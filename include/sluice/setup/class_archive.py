"""The class archive: what Spark's JVM has loaded and verified once, kept so that every later start maps it from disk.

It saves 40 % of the processor time of a Spark application's start;
decision 0006 has the measurements. The archive lies inside the environment it belongs to, since it is
valid for that environment's class path alone. The JVM ignores an archive that does not fit (`-Xshare:auto`).
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from sluice.setup.command_runner import CommandResult, CommandRunner
from sluice.setup.java_runtime import JavaRuntime
from sluice.setup.setup_progress import Progress

ARCHIVE_NAME = "spark-classes.jsa"
"""The archive's name in the environment's folder (`sys.prefix`), where `sluice.launching.launch_settings` finds it."""

_SILENCE_SECONDS = 120.0
"""Recording takes half a minute on 2 idle cores, and minutes on busy ones. What neither writes nor computes for so long
hangs, and the machine continues without an archive."""


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
