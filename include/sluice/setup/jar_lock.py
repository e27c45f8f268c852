"""`ivy.lock`: every jar of every class path with its hash. It is to `ivy.xml` what `uv.lock` is to `pyproject.toml`."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from xml.sax.saxutils import quoteattr

from sluice.errors import PrerequisiteError

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
