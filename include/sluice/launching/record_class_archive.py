"""Run one small Spark application whose JVM writes the classes it has loaded into an archive when it ends.

The bootstrap runs it in the project's environment. The application is started with the settings of every other one
(`sluice.launching.launch_settings`), because an archive is valid only for the same class path.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from sluice.declarations.run_declaration import EngineDeclaration
from sluice.launching.launch_settings import launch_conf
from sluice.settings import project_root


def recording_command(*, home: Path, jars: Path, archive: Path, warehouse: Path) -> list[str]:
    """Return the `spark-submit` command that records the archive.

    Parameters
    ----------
    home: the project's root.
    jars: the folder with one folder of jars for each class path.
    archive: the file that the JVM writes.
    warehouse: an empty folder for the application's table.
    """
    conf = launch_conf(home=home, jars=jars, engine=EngineDeclaration(), is_bounded=True)
    conf["spark.driver.extraJavaOptions"] += f" -XX:ArchiveClassesAtExit={archive} -Xlog:cds*=off"
    settings = [word for key, value in conf.items() for word in ("--conf", f"{key}={value}")]
    program = Path(sys.prefix) / "bin" / "spark-submit"
    return [str(program), "--master", "local[2]", *settings, str(home / "jobs" / "load_classes.py"), str(warehouse)]


def main() -> None:
    """Record into the file of the first argument, with the Java of JAVA_HOME and the jars of SLUICE_JARS."""
    with tempfile.TemporaryDirectory() as warehouse:
        command = recording_command(
            home=project_root(),
            jars=Path(os.environ["SLUICE_JARS"]),
            archive=Path(sys.argv[1]),
            warehouse=Path(warehouse),
        )
        # Spark looks up the address of the machine's own name, which fails on a bare machine.
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
        sys.exit(subprocess.run(command, env=environment).returncode)  # noqa: S603  # our own command, no shell


if __name__ == "__main__":
    main()
