"""Fetch the locked jars into a folder that all clones of this user share, and write their lock, `ivy.lock`, from
`ivy.xml`.

The Ivy inside pyspark fetches them. Two things make that 8 times faster than resolving `ivy.xml` (60 s): the lock
already names every jar, so no POM is read, and the lock's sha256 is checked, so no checksum file is fetched.

`ivy.lock`: every jar of every class path with its hash. It is to `ivy.xml` what `uv.lock` is to `pyproject.toml`.

`make lock` runs this module in the project's environment: Ivy resolves all of `ivy.xml`, with the POMs, and its reports
list the result.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import tomllib
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit
from xml.sax.saxutils import quoteattr

from sluice.errors import PrerequisiteError
from sluice.setup.command_runner import CommandRunner, Progress
from sluice.setup.java_runtime import JavaRuntime, search_java

_HEADER = """\
# Every jar of every class path of ivy.xml, with all that the listed artifacts need themselves.
# Written by `make lock`, read by the bootstrap; not edited by hand.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Jar:
    """One jar: its Maven coordinates, its size and its content's hash."""

    organisation: str
    name: str
    revision: str
    size_bytes: int
    sha256: str

    @property
    def file_name(self) -> str:
        """The jar's name in its class path's folder, as Ivy's pattern `[artifact]-[revision].[ext]` gives it."""
        return f"{self.name}-{self.revision}.jar"


@dataclass(frozen=True, slots=True, kw_only=True)
class JarLock:
    """The content of `ivy.lock`.

    Parameters
    ----------
    ivy_xml_sha256: the hash of the `ivy.xml` that was resolved.
    class_paths: the jars of each class path.
    """

    ivy_xml_sha256: str
    class_paths: Mapping[str, tuple[Jar, ...]]

    def key(self) -> str:
        """The name of the folder of exactly these jars; a comment in `ivy.xml` does not change it."""
        pins = sorted(f"{name}/{jar.file_name} {jar.sha256}" for name, jars in self.class_paths.items() for jar in jars)
        return hashlib.sha256("\n".join(pins).encode()).hexdigest()[:16]

    def only(self, class_paths: Iterable[str]) -> JarLock:
        """The lock of some class paths."""
        return replace(self, class_paths={name: self.class_paths[name] for name in class_paths})

    def jars(self) -> tuple[Jar, ...]:
        """All jars; a jar of two class paths is listed twice."""
        return tuple(jar for jars in self.class_paths.values() for jar in jars)


def read_lock(root: Path) -> JarLock:
    """Read `ivy.lock` and compare it with the `ivy.xml` beside it.

    Raises
    ------
    PrerequisiteError: when `ivy.xml` was changed after `ivy.lock` was written.
    """
    lock = parse_lock((root / "ivy.lock").read_text())
    if lock.ivy_xml_sha256 != hashlib.sha256((root / "ivy.xml").read_bytes()).hexdigest():
        raise PrerequisiteError("ivy.xml was changed after ivy.lock was written.", next_step="Run `make lock`.")
    return lock


def parse_lock(text: str) -> JarLock:
    """The lock that a text describes, the inverse of `render_lock`."""
    content = tomllib.loads(text)
    return JarLock(
        ivy_xml_sha256=content["ivy_xml_sha256"],
        class_paths={name: tuple(Jar(**jar) for jar in jars) for name, jars in content["class_paths"].items()},
    )


def render_lock(lock: JarLock) -> str:
    """The text of a lock: one line for each jar, sorted by name, so that a change is easy to read."""
    lines = [_HEADER, f'ivy_xml_sha256 = "{lock.ivy_xml_sha256}"', "", "[class_paths]"]
    for class_path, jars in sorted(lock.class_paths.items()):
        lines.append(f"{class_path} = [")
        for jar in sorted(jars, key=lambda jar: (jar.name, jar.revision)):
            fields = (
                f"{key} = {value}" if isinstance(value, int) else f'{key} = "{value}"'
                for key, value in asdict(jar).items()
            )
            lines.append(f"    {{ {', '.join(fields)} }},")
        lines.append("]")
    return "\n".join(lines) + "\n"


def render_ivy_module(lock: JarLock) -> str:
    """An Ivy file that requests exactly the locked jars, without their own dependencies."""
    dependencies = (
        f"<dependency org={quoteattr(jar.organisation)} name={quoteattr(jar.name)} rev={quoteattr(jar.revision)} "
        f'conf="{class_path}->default" transitive="false"/>'
        for class_path, jars in lock.class_paths.items()
        for jar in jars
    )
    return (
        '<ivy-module version="2.0"><info organisation="org.sluice" module="locked-class-paths"/><configurations>'
        + "".join(f"<conf name={quoteattr(class_path)}/>" for class_path in lock.class_paths)
        + f"</configurations><dependencies>{''.join(dependencies)}</dependencies></ivy-module>"
    )


_IVY_SETTINGS = """\
<ivysettings>
  <settings defaultResolver="central"/>
  <resolvers>
    <ibiblio name="central" m2compatible="true" usepoms="false" useMavenMetadata="false" checksums=""/>
  </resolvers>
</ivysettings>
"""


def is_complete(folder: Path, *, lock: JarLock) -> bool:
    """Whether a folder holds exactly the locked jars: by name and size, then by hash, which takes half a second."""
    for class_path, jars in lock.class_paths.items():
        present = {path.name: path.stat().st_size for path in (folder / class_path).glob("*.jar")}
        if present != {jar.file_name: jar.size_bytes for jar in jars}:
            return False
    return all(
        _sha256(folder / class_path / jar.file_name) == jar.sha256
        for class_path, jars in lock.class_paths.items()
        for jar in jars
    )


def _sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def provide_jars(
    lock: JarLock, *, cache: Path, ivy: Path, java: JavaRuntime, runner: CommandRunner, progress: Progress
) -> Path:
    """The folder of the locked jars, with one folder for each class path, fetched when it is not there yet.

    The jars are fetched into a temporary folder that is renamed at the end, so an interruption leaves no part of them.

    Parameters
    ----------
    lock: the jars.
    cache: Sluice's folder of the user's cache.
    ivy: the Ivy jar inside pyspark.
    java: the Java that runs Ivy.
    runner: starts programs.
    progress: reports what is done.

    Raises
    ------
    PrerequisiteError: when a jar cannot be fetched, or is not the file that the lock names.
    """
    folder = jars_folder(lock, cache=cache)
    if is_complete(folder, lock=lock):
        return folder
    progress.report(f"Fetching {len(lock.jars())} jars ({sum(jar.size_bytes for jar in lock.jars()) // 1_000_000} MB)")
    for leftover in folder.parent.glob("partial-*"):  # of a bootstrap that was killed
        shutil.rmtree(leftover)
    partial = folder.with_name(f"partial-{os.getpid()}")
    partial.mkdir(parents=True)
    try:
        _fetch(lock, into=partial, ivy_cache=cache / "ivy", ivy=ivy, java=java, runner=runner)
        _verify(lock, folder=partial, ivy_cache=cache / "ivy")
        if folder.exists():
            shutil.rmtree(folder)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)  # it was renamed when all went well
    return folder


def jars_folder(lock: JarLock, *, cache: Path) -> Path:
    """The folder of exactly the locked jars."""
    return cache / "jars" / lock.key()


def ivy_jar(root: Path) -> Path:
    """The Ivy jar inside the pyspark of the project's environment.

    Parameters
    ----------
    root: the project's root, with `.venv` in it.

    Raises
    ------
    PrerequisiteError: when pyspark is not installed completely.
    """
    found = sorted((root / ".venv").glob("lib/python3*/site-packages/pyspark/jars/ivy-*.jar"))
    if len(found) != 1:
        raise PrerequisiteError(
            f"The pyspark in {root / '.venv'} holds {len(found)} Ivy jars instead of one.",
            next_step="Remove the folder .venv and run the command again.",
        )
    return found[0]


def proxy_options(environment: Mapping[str, str]) -> str:
    """The Java options for the proxy of HTTPS_PROXY and NO_PROXY, which Java does not read; empty without a proxy."""
    proxy = environment.get("https_proxy") or environment.get("HTTPS_PROXY")
    if not proxy:
        return ""
    parts = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    options = [f"-Dhttps.proxyHost={parts.hostname}", f"-Dhttps.proxyPort={parts.port or 80}"]
    exceptions = environment.get("no_proxy") or environment.get("NO_PROXY")
    if exceptions:
        hosts = (host.strip() for host in exceptions.split(","))
        options.append(
            "-Dhttp.nonProxyHosts=" + "|".join(f"*{host}" if host.startswith(".") else host for host in hosts)
        )
    return " ".join(options)


def _fetch(lock: JarLock, *, into: Path, ivy_cache: Path, ivy: Path, java: JavaRuntime, runner: CommandRunner) -> None:
    (into / "ivy.xml").write_text(render_ivy_module(lock))
    (into / "ivysettings.xml").write_text(_IVY_SETTINGS)
    result = runner.run(
        [
            java.home / "bin" / "java",
            *("-jar", ivy, "-warn", "-settings", into / "ivysettings.xml", "-ivy", into / "ivy.xml"),
            *("-cache", ivy_cache, "-retrieve", into / "[conf]" / "[artifact]-[revision].[ext]"),
        ],
        environment={"JDK_JAVA_OPTIONS": f"{os.environ.get('JDK_JAVA_OPTIONS', '')} {proxy_options(os.environ)}"},
    )
    if not result.is_success():
        raise PrerequisiteError(
            f"The jars could not be fetched: {_complaint(result.output)}",
            next_step="Check the network (HTTPS_PROXY is honoured) and the free disk space, then run it again.",
        )


def _complaint(output: str) -> str:
    """The first problem that Ivy reports; the other lines are progress, headings, repetitions and consequences."""
    aside = (":", "NOTE:", "(", "at ", "downloading ", "[SUCCESSFUL")
    lines = (line.strip().lstrip(". ") for line in output.splitlines())  # a dot is printed for each part of a file
    problems = (line for line in lines if line and not line.startswith(aside))
    return f"{next(problems, 'Ivy ended without an explanation')}."


def _verify(lock: JarLock, *, folder: Path, ivy_cache: Path) -> None:
    for class_path, jars in lock.class_paths.items():
        for jar in jars:
            sha256 = _sha256(folder / class_path / jar.file_name)
            if sha256 != jar.sha256:
                shutil.rmtree(ivy_cache)  # Ivy keeps the file and would return it again
                raise PrerequisiteError(
                    f"The jar {jar.file_name} that was fetched is not the file that ivy.lock names: its sha256 is "
                    f"{sha256} instead of {jar.sha256}.",
                    next_step="Run the command again; if it happens again, something between this machine and the "
                    "repository changes files.",
                )


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
