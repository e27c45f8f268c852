"""Which items share an application: those with the same engine settings, of one deployment.

An application is one Spark driver, and some of its settings hold for all that it does: its memory, its master, the jars
of its session, how often a task is tried. Items that need other settings get another application.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pydantic import ByteSize

import sluice
from sluice.declarations.engine_declaration import EngineDeclaration
from sluice.declarations.loaded_declarations import LoadedStream
from sluice.launching.launch_settings import job_environment, launch_conf
from sluice.launching.spark_submit import DEFAULT_CONNECTION, SparkConnection
from sluice.ledger.work_values import Pool
from sluice.settings import Settings

LINGER_SECONDS = 15
"""How long an application waits for the next item by default: Airflow starts a task that waits for another one within
some seconds, and a JVM that starts costs as much as many items."""

_SHARED_HEAP_BYTES = 1024**3
"""The least heap of an application: its items share it. What a driver of one stream needs is enough for none but it."""

_CODE = frozenset({".py", ".sql", ".yaml", ".yml", ".json", ".avsc", ".proto", ".desc"})

_OF_ONE_TERMINAL = re.compile(
    r"_|PWD|OLDPWD|SHLVL|TERM.*|COLORTERM|COLUMNS|LINES|LS_COLORS|PS1|PROMPT.*|HIST.*|SSH_.*|TMUX.*|STY|WINDOW.*|DISPLAY|"
    r"HOST|HOSTNAME|GPG_TTY|DBUS_.*|VSCODE_.*|"
    r"XDG_.*|INVOCATION_ID|JOURNAL_STREAM|PYTEST_.*|MAKE.*|MFLAGS|SLUICE_RUN_ID|PYSPARK_GATEWAY_.*|SPARK_LOCAL_IP"
)
"""Variables that differ between two terminals, tasks or hosts of one deployment, and that no work depends on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProfile:
    """What is the same for all items of an application.

    engine: memory, cores, executors and options.
    with_delta: whether sessions apply Delta's rules.
    repeats_tasks: whether a task that failed is tried again in local mode.
    ui_of: the one stream whose page shows Spark's own UI of the application; empty when it has none.
    """

    engine: EngineDeclaration = field(default_factory=EngineDeclaration)
    with_delta: bool = False
    repeats_tasks: bool = True
    ui_of: str = ""

    @property
    def connection(self) -> str:
        """The name of the Spark connection."""
        return self.engine.connection or DEFAULT_CONNECTION

    @property
    def linger_seconds(self) -> int:
        """How long an application waits for further work after an item with these settings."""
        return max(LINGER_SECONDS, self.engine.kept_minutes * 60)


def profile_of(stream: LoadedStream, *, with_delta: bool | None = None, is_increment: bool = False) -> EngineProfile:
    """The settings with which the work of a stream is done.

    Parameters
    ----------
    with_delta: whether Delta tables are read or written; unset: as the stream itself does.
    is_increment: whether it is a run of the stream: then records may be handed on one by one, and its page has a UI.
    """
    declaration = stream.declaration
    return EngineProfile(
        engine=declaration.engine,
        with_delta=declaration.uses_delta if with_delta is None else with_delta,
        repeats_tasks=not (is_increment and declaration.hands_on_records),
        ui_of=declaration.stream if is_increment and declaration.engine.ui else "",
    )


def pool_of(profile: EngineProfile, settings: Settings, connection: SparkConnection) -> Pool:
    """The pool of items with these settings in this process's deployment."""
    shared = profile.engine.model_dump(mode="json", exclude={"kept_minutes", "ui"})
    parts = {**asdict(profile), "engine": shared, "connection": asdict(connection), "home": str(settings.home)}
    name = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:8]
    return Pool(name=f"{profile.connection}-{name}", digest=deployment_digest(settings, os.environ))


def deployment_digest(settings: Settings, environ: Mapping[str, str]) -> str:
    """A digest of all that an application has loaded: of its files, and after a hyphen of what surrounds it.

    Parameters
    ----------
    environ: of a process of the deployment; variables of a single terminal or task do not count.
    """
    surroundings = {
        name: value for name, value in job_environment(environ).items() if not _OF_ONE_TERMINAL.fullmatch(name)
    }
    values = json.dumps([settings.model_dump_json(), *settings.secret_values(), sorted(surroundings.items())])
    return f"{files_digest(settings)}-{hashlib.sha256(values.encode()).hexdigest()[:24]}"


def files_digest(settings: Settings) -> str:
    """A digest over the content of the deployment's code and declarations, behind links too.

    A link to nothing is no file: an editor leaves one beside a file that is open in it. So is a file that is replaced
    while its folder is read; its next content is seen by the next one who asks.

    Modules that a transformation imports from elsewhere do not count, unless `PYTHONPATH` names another place.
    """
    digest = hashlib.sha256()
    for folder in (settings.pipelines, settings.home / "jobs", Path(sluice.__file__).parent):
        for file in _code_in(folder):
            with contextlib.suppress(FileNotFoundError):  # replaced meanwhile: without it the digest is another one
                digest.update(f"{file} ".encode() + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:24]


def _code_in(folder: Path) -> Iterator[Path]:
    """The files of code in a folder and behind its links, each folder once: a link may lead back to it."""
    entered: set[str] = {os.path.realpath(folder)}
    for place, folders, names in os.walk(folder, followlinks=True):
        real = {name: os.path.realpath(Path(place, name)) for name in sorted(folders)}
        folders[:] = [name for name, path in real.items() if path not in entered]
        entered.update(real.values())
        yield from (Path(place, name) for name in sorted(names) if Path(name).suffix in _CODE)


def conf_of(profile: EngineProfile, settings: Settings, connection: SparkConnection) -> dict[str, str]:
    """The `--conf` settings of an application with these engine settings."""
    memory = ByteSize(max(profile.engine.driver_memory, _SHARED_HEAP_BYTES))
    engine = profile.engine.model_copy(update={"driver_memory": memory})
    return launch_conf(home=settings.home, jars=settings.jars, engine=engine, is_bounded=True, master=connection.master)
