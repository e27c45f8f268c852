"""Write `ivy.lock` from `ivy.xml`: `make lock` runs it in the project's environment.

Ivy resolves all of `ivy.xml`, with the POMs, and its reports list the result.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from sluice.errors import PrerequisiteError
from sluice.setup.command_runner import CommandRunner
from sluice.setup.jars import Jar, JarLock, ivy_jar, proxy_options, render_lock
from sluice.setup.java_runtime import search_java

_ROOT = Path(__file__).resolve().parents[3]


def resolve(root: Path, *, work: Path, ivy: Path, java_home: Path, runner: CommandRunner) -> JarLock:
    """Resolve `ivy.xml` and fetch every jar of it.

    Parameters
    ----------
    root: the project's root.
    work: an empty folder for the jars and for Ivy's reports.
    ivy: the Ivy jar inside pyspark.
    java_home: the Java that runs Ivy.
    runner: starts programs.

    Raises
    ------
    PrerequisiteError: when Ivy cannot resolve everything.
    """
    ivy_xml = root / "ivy.xml"
    result = runner.run(
        [
            java_home / "bin" / "java",
            *("-jar", ivy, "-warn", "-ivy", ivy_xml, "-cache", work / "cache"),
            *("-retrieve", work / "jars" / "[conf]" / "[artifact]-[revision].[ext]"),
        ],
        environment={"JDK_JAVA_OPTIONS": proxy_options(os.environ)},
    )
    if not result.is_success():
        raise PrerequisiteError(f"ivy.xml could not be resolved: {result.explanation()}")
    class_paths = {
        report.stem.removeprefix("org.sluice-class-paths-"): _resolved(report, jars=work / "jars")
        for report in (work / "cache").glob("org.sluice-class-paths-*.xml")
    }
    return JarLock(ivy_xml_sha256=hashlib.sha256(ivy_xml.read_bytes()).hexdigest(), class_paths=class_paths)


def _resolved(report: Path, *, jars: Path) -> tuple[Jar, ...]:
    """The jars of one class path, from Ivy's report, without the revisions that a higher one replaced."""
    class_path = report.stem.rsplit("-", 1)[-1]
    found = []
    for module in ElementTree.parse(report).getroot().iter("module"):  # noqa: S314  # our own Ivy has just written it
        for revision in module.iter("revision"):
            if revision.get("evicted") is None:
                names = {"name": module.attrib["name"], "revision": revision.attrib["name"]}
                content = (jars / class_path / f"{names['name']}-{names['revision']}.jar").read_bytes()
                found.append(
                    Jar(
                        organisation=module.attrib["organisation"],
                        **names,
                        size_bytes=len(content),
                        sha256=hashlib.sha256(content).hexdigest(),
                    )
                )
    return tuple(found)


def main() -> None:
    """Resolve `ivy.xml` and replace `ivy.lock`."""
    runner = CommandRunner()
    search = search_java(environment=os.environ, runner=runner)
    java = search.supported()
    if java is None:
        raise search.missing("the jars cannot be resolved without it")
    with tempfile.TemporaryDirectory() as work:
        lock = resolve(_ROOT, work=Path(work), ivy=ivy_jar(_ROOT), java_home=java.home, runner=runner)
    (_ROOT / "ivy.lock").write_text(render_lock(lock))


if __name__ == "__main__":
    main()
