"""`ivy.lock` and the folder of the jars that it lists."""

from __future__ import annotations

import hashlib
from pathlib import Path
from xml.etree import ElementTree

import pytest

from sluice.errors import PrerequisiteError
from sluice.setup.jars import (
    Jar,
    JarLock,
    is_complete,
    ivy_jar,
    parse_lock,
    proxy_options,
    read_lock,
    render_ivy_module,
    render_lock,
)

CONTENT = b"a jar"
ICEBERG = Jar(
    organisation="org.apache.iceberg",
    name="iceberg",
    revision="1.0",
    size_bytes=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
)
KAFKA = Jar(organisation="org.apache.kafka", name="kafka", revision="4.0", size_bytes=3, sha256="0" * 64)
LOCK = JarLock(ivy_xml_sha256="1" * 64, class_paths={"spark": (ICEBERG,), "kafka": (ICEBERG, KAFKA)})


def test_lock_reads_what_it_wrote() -> None:
    assert parse_lock(render_lock(LOCK)) == JarLock(
        ivy_xml_sha256="1" * 64, class_paths={"kafka": (ICEBERG, KAFKA), "spark": (ICEBERG,)}
    )


def test_key_depends_on_the_jars_only() -> None:
    same = JarLock(ivy_xml_sha256="2" * 64, class_paths={"kafka": (KAFKA, ICEBERG), "spark": (ICEBERG,)})
    other = JarLock(ivy_xml_sha256="1" * 64, class_paths={"spark": (ICEBERG, KAFKA), "kafka": (ICEBERG,)})

    assert LOCK.key() == same.key() != other.key()


def test_ivy_is_asked_for_exactly_the_locked_jars() -> None:
    module = ElementTree.fromstring(render_ivy_module(LOCK))  # noqa: S314  # what we have just rendered

    asked = [(d.attrib["conf"], d.attrib["name"], d.attrib["transitive"]) for d in module.iter("dependency")]
    assert asked == [
        ("spark->default", "iceberg", "false"),
        ("kafka->default", "iceberg", "false"),
        ("kafka->default", "kafka", "false"),
    ]


def test_changed_ivy_xml_needs_a_new_lock(tmp_path: Path) -> None:
    (tmp_path / "ivy.xml").write_text("<ivy-module/>")
    (tmp_path / "ivy.lock").write_text(render_lock(LOCK))

    with pytest.raises(PrerequisiteError, match=r"ivy.xml was changed after ivy.lock was written. Run `make lock`."):
        read_lock(tmp_path)


def test_folder_is_complete_when_every_jar_has_its_size(tmp_path: Path) -> None:
    lock = JarLock(ivy_xml_sha256="", class_paths={"spark": (ICEBERG,)})
    assert not is_complete(tmp_path, lock=lock)

    jar = tmp_path / "spark" / "iceberg-1.0.jar"
    jar.parent.mkdir()
    jar.write_bytes(CONTENT)
    assert is_complete(tmp_path, lock=lock)

    jar.write_bytes(CONTENT[:-1])
    assert not is_complete(tmp_path, lock=lock)

    jar.write_bytes(CONTENT[:-1] + b"?")  # a jar of the same size, exchanged since it was fetched
    assert not is_complete(tmp_path, lock=lock)

    jar.write_bytes(CONTENT)
    (tmp_path / "spark" / "left-over.jar").touch()
    assert not is_complete(tmp_path, lock=lock)


def test_half_installed_pyspark_is_reported(tmp_path: Path) -> None:
    with pytest.raises(PrerequisiteError, match=r"holds 0 Ivy jars instead of one. Remove the folder \.venv"):
        ivy_jar(tmp_path)


@pytest.mark.parametrize(
    ("environment", "options"),
    [
        ({}, ""),
        ({"HTTPS_PROXY": "http://proxy.example:3128"}, "-Dhttps.proxyHost=proxy.example -Dhttps.proxyPort=3128"),
        ({"https_proxy": "proxy.example:8080"}, "-Dhttps.proxyHost=proxy.example -Dhttps.proxyPort=8080"),
        (
            {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "localhost, .example"},
            "-Dhttps.proxyHost=p -Dhttps.proxyPort=1 -Dhttp.nonProxyHosts=localhost|*.example",
        ),
    ],
)
def test_java_gets_the_proxy(environment: dict[str, str], options: str) -> None:
    assert proxy_options(environment) == options
