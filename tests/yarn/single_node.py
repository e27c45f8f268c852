"""A real YARN of one node on loopback: a ResourceManager and a NodeManager, from the jars of `ivy.xml` here.

The file system that a cluster's nodes share is this machine's own. Every port is the kernel's choice.
"""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from sluice.errors import ClusterError
from sluice.launching.yarn import YarnCluster, request_json
from sluice.settings import project_root
from sluice.setup.jars import ivy_jar, proxy_options

NODE_UP_WITHIN_SECONDS = 600.0
"""Both daemons are up 18 s after their start on an idle machine."""

ENDED_WITHIN_SECONDS = 90.0
"""How long a daemon may take to end in order before it is killed: a NodeManager waits for its ResourceManager."""

_RESOURCE_MANAGER = "org.apache.hadoop.yarn.server.resourcemanager.ResourceManager"
_NODE_MANAGER = "org.apache.hadoop.yarn.server.nodemanager.NodeManager"


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleNodeYarn:
    """A YARN that runs.

    configuration: the folder for HADOOP_CONF_DIR. webapp: the address of the ResourceManager's REST API.
    """

    configuration: Path
    webapp: str

    def running(self) -> list[str]:
        """The ids of the applications that have not ended."""
        states = "NEW,NEW_SAVING,SUBMITTED,ACCEPTED,RUNNING"
        told = request_json("GET", f"{self.webapp}/ws/v1/cluster/apps?states={states}", timeout_seconds=30)
        return [app["id"] for app in (told.get("apps") or {}).get("app", [])]

    def end_applications(self) -> None:
        """End every application and wait until none is left."""
        deadline = time.monotonic() + ENDED_WITHIN_SECONDS
        while left := self.running():
            assert time.monotonic() < deadline, f"these applications do not end: {left}"
            for name in left:
                YarnCluster(addresses=(self.webapp,), user=getpass.getuser()).kill(name)
            time.sleep(0.5)


@contextmanager
def single_node_yarn(folder: Path) -> Iterator[SingleNodeYarn]:
    """Start both daemons in a folder of their own, and end them with the block.

    Raises
    ------
    AssertionError: when no node has joined in time; the daemons' logs are in the folder.
    """
    jars = _provide_jars(Path.home() / ".cache" / "sluice" / "yarn")
    configuration = folder / "conf"
    webapp = _configure(configuration, folder)
    started_at_ms = 0
    daemons = [_start(name, jars=jars, configuration=configuration) for name in (_RESOURCE_MANAGER, _NODE_MANAGER)]
    try:
        yarn = SingleNodeYarn(configuration=configuration, webapp=webapp)
        started_at_ms = _await_node(yarn, daemons, folder)
        yield yarn
    finally:
        _end(daemons)
        for staged in (Path.home() / ".sparkStaging").glob(f"application_{started_at_ms}_*"):
            shutil.rmtree(staged)  # Spark leaves what a killed application was given


def _provide_jars(folder: Path) -> Path:
    """The folder of the daemons' jars, fetched by the Ivy inside pyspark when it is not there yet."""
    if folder.is_dir():
        return folder
    partial = folder.with_name(f"yarn-partial-{os.getpid()}")
    # `bundle`: Guava and Jackson are of that type. The classifier keeps Netty's native jars apart.
    pattern = partial / "[artifact]-[revision](-[classifier]).[ext]"
    command: list[str | Path] = [
        "java",
        "-jar",
        ivy_jar(project_root()),
        "-warn",
        "-ivy",
        Path(__file__).with_name("ivy.xml"),
    ]
    command += ["-cache", folder.parent / "ivy-yarn", "-types", "jar", "bundle", "-retrieve", pattern]
    options = f"{os.environ.get('JDK_JAVA_OPTIONS', '')} {proxy_options(os.environ)}"
    subprocess.run(command, env={**os.environ, "JDK_JAVA_OPTIONS": options}, check=True)  # noqa: S603  # our own Ivy
    partial.rename(folder)
    return folder


def _configure(configuration: Path, folder: Path) -> str:
    """Write the configuration, and return the address of the ResourceManager's REST API."""
    configuration.mkdir(parents=True)
    ports = iter(_free_ports(8))
    webapp = f"127.0.0.1:{next(ports)}"
    manager, node = "yarn.resourcemanager", "yarn.nodemanager"
    _write(
        configuration / "core-site.xml",
        {"fs.defaultFS": "file:///", "hadoop.tmp.dir": f"{folder}/scratch", "hadoop.http.staticuser.user": "nobody"},
    )
    _write(
        configuration / "yarn-site.xml",
        {
            f"{manager}.webapp.address": webapp,
            f"{manager}.address": f"127.0.0.1:{next(ports)}",
            f"{manager}.scheduler.address": f"127.0.0.1:{next(ports)}",
            f"{manager}.resource-tracker.address": f"127.0.0.1:{next(ports)}",
            f"{manager}.admin.address": f"127.0.0.1:{next(ports)}",
            f"{manager}.nodemanagers.heartbeat-interval-ms": "250",
            f"{node}.address": f"127.0.0.1:{next(ports)}",
            f"{node}.localizer.address": f"127.0.0.1:{next(ports)}",
            f"{node}.webapp.address": f"127.0.0.1:{next(ports)}",
            f"{node}.local-dirs": f"{folder}/local",
            f"{node}.log-dirs": f"{folder}/containers",
            f"{node}.resource.memory-mb": "6144",
            f"{node}.resource.cpu-vcores": "8",
            f"{node}.vmem-check-enabled": "false",
            f"{node}.disk-health-checker.max-disk-utilization-per-disk-percentage": "99.5",
            "yarn.scheduler.minimum-allocation-mb": "128",
        },
    )
    scheduler = "yarn.scheduler.capacity"
    _write(
        configuration / "capacity-scheduler.xml",
        {
            f"{scheduler}.root.queues": "default",
            f"{scheduler}.root.default.capacity": "100",
            f"{scheduler}.maximum-am-resource-percent": "1.0",
        },
    )
    (configuration / "log4j.properties").write_text(
        "log4j.rootLogger=WARN,console\n"
        "log4j.appender.console=org.apache.log4j.ConsoleAppender\n"
        "log4j.appender.console.layout=org.apache.log4j.PatternLayout\n"
        "log4j.appender.console.layout.ConversionPattern=%d %p %c: %m%n\n"
    )
    return f"http://{webapp}"


def _write(file: Path, properties: Mapping[str, str]) -> None:
    root = ElementTree.Element("configuration")
    for name, value in properties.items():
        element = ElementTree.SubElement(root, "property")
        ElementTree.SubElement(element, "name").text = name
        ElementTree.SubElement(element, "value").text = value
    ElementTree.ElementTree(root).write(file)


def _free_ports(count: int) -> list[int]:
    """Ports that nobody had a moment ago."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports: list[int] = [server.getsockname()[1] for server in held]
    for server in held:
        server.close()
    return ports


def _start(main_class: str, *, jars: Path, configuration: Path) -> subprocess.Popen[bytes]:
    folder = configuration.parent
    opened = [f"--add-opens=java.base/java.{package}=ALL-UNNAMED" for package in ("lang", "io", "net", "util")]
    homes = [f"-D{name}={folder}" for name in ("hadoop.home.dir", "hadoop.log.dir", "yarn.log.dir")]
    command = ["java", "-XX:+UseSerialGC", "-Xmx512m", "-Djava.net.preferIPv4Stack=true", *opened, *homes]
    with (folder / f"{main_class.rpartition('.')[2]}.log").open("wb") as log:
        return subprocess.Popen(  # noqa: S603  # our own command line
            [*command, "-cp", f"{configuration}:{jars}/*", main_class],
            env={
                **os.environ,
                "HADOOP_CONF_DIR": str(configuration),
                "HADOOP_HOME": str(folder),
                "JAVA_HOME": str(_java_home()),
            },
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=folder,
        )


def _java_home() -> Path:
    """The Java that containers begin with."""
    java = shutil.which("java")
    assert java is not None, "there is no java on the PATH"
    return Path(java).resolve().parents[1]


def _await_node(yarn: SingleNodeYarn, daemons: list[subprocess.Popen[bytes]], folder: Path) -> int:
    """Wait until the node has joined. Returns the ResourceManager's start, which is part of every application's id."""
    deadline = time.monotonic() + NODE_UP_WITHIN_SECONDS
    while True:
        dead = [daemon.args for daemon in daemons if daemon.poll() is not None]
        assert not dead, f"a daemon ended, see the logs in {folder}"
        try:
            told = request_json("GET", f"{yarn.webapp}/ws/v1/cluster/metrics", timeout_seconds=30)
            if told["clusterMetrics"]["activeNodes"] == 1:
                info = request_json("GET", f"{yarn.webapp}/ws/v1/cluster/info", timeout_seconds=30)
                return int(info["clusterInfo"]["startedOn"])
        except ClusterError:
            pass  # the ResourceManager does not listen yet
        assert time.monotonic() < deadline, f"no node joined within {NODE_UP_WITHIN_SECONDS} s, see {folder}"
        time.sleep(0.5)


def _end(daemons: list[subprocess.Popen[bytes]]) -> None:
    """End the daemons and whatever containers they leave."""
    left = [child for daemon in daemons for child in _children(daemon.pid)]
    for daemon in reversed(daemons):
        daemon.terminate()
    for daemon in daemons:
        try:
            daemon.wait(ENDED_WITHIN_SECONDS)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()
    for child in left:
        if child.is_running():  # the same process, by its start time
            child.kill()


def _children(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
