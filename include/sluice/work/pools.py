"""Which items share an application: those with the same engine settings, of one deployment; and the log of an item,
which is its lines in the log of the application that did it.

An application is one Spark driver, and some of its settings hold for all that it does: its memory, its master, the jars
of its session, how often a task is tried. Items that need other settings get another application.

    2026-11-26T01:06:41Z WARNING [3f2b8c1d] the ledger does not answer; batch 7 waits

Lines of the application itself have no item. A line without a time, as those of a traceback, belongs to the one before.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from uuid import UUID

from pydantic import ByteSize

import sluice
from sluice.declarations.loaded_declarations import LoadedStream
from sluice.declarations.run_declaration import EngineDeclaration
from sluice.launching.launch_settings import job_environment, launch_conf
from sluice.launching.spark_submit import DEFAULT_CONNECTION, SparkConnection
from sluice.ledger.work_values import Pool, WorkObservation
from sluice.processes.driver_watch import rotated_logs
from sluice.settings import Settings

_BEGINNING = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}Z [A-Z]+ (?:\[(?P<item>[0-9a-f]{8})\] )?")

_LABEL_DIGITS = 8
"""Of an item's 32 hexadecimal digits: two of a thousand items of a log have the same in one of 8,600 logs."""


def item_label(item: UUID) -> str:
    """What a log calls an item: the first digits of its id."""
    return item.hex[:_LABEL_DIGITS]


def lines_of_item(lines: Iterable[str], item: UUID) -> Iterator[str]:
    """The lines of a log that belong to an item, in their order.

    Parameters
    ----------
    lines: of the log, with or without their ends. A first line that continues an earlier one belongs to no item.
    """
    label, is_its_own = item_label(item), False
    for line in lines:
        if beginning := _BEGINNING.match(line):
            is_its_own = beginning["item"] == label
        if is_its_own:
            yield line


def last_lines_of_item(seen: WorkObservation, *, limit: int) -> list[str]:
    """The last lines about an item; when this host has none, a line that says whose log has them."""
    if seen.application is None:
        return ["no application has claimed this item yet"]
    own: deque[str] = deque(maxlen=limit)
    if seen.log_file is not None:
        own.extend(lines_of_item(_lines(rotated_logs(Path(seen.log_file))), UUID(seen.item)))
    return list(own) or [f"no log on this host has a line about this item: see that of application {seen.application}"]


def _lines(logs: Iterable[Path]) -> Iterator[str]:
    for log in logs:
        with log.open(encoding="utf-8", errors="replace") as lines:
            yield from (line.rstrip("\n") for line in lines)


@dataclass(slots=True, kw_only=True)
class FollowedLog:
    """The lines of an item in the log of its application, as they come. Each byte of the log is read once. A log that
    was cut, because it was full, is followed from its new beginning.

    on_line: is called with each line.
    """

    item: str
    on_line: Callable[[str], object]
    _path: str = ""
    _read_bytes: int = 0
    _beginning: str = ""

    def read(self, seen: WorkObservation) -> None:
        """Hand on the lines that have come, when the log is on this host."""
        if seen.log_file is None or not Path(seen.log_file).exists():
            return
        if seen.log_file != self._path:
            self._path, self._read_bytes, self._beginning = seen.log_file, 0, ""
        with Path(self._path).open("rb") as log:
            if log.seek(0, os.SEEK_END) < self._read_bytes:
                self._read_bytes, self._beginning = 0, ""
            log.seek(self._read_bytes)
            new = log.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        if whole:
            self._hand_on(whole.decode(errors="replace").split("\n")[:-1])

    def _hand_on(self, lines: Sequence[str]) -> None:
        """The first of these lines may continue a line that has come before: the beginning."""
        before = [self._beginning] if self._beginning else []
        item = UUID(self.item)
        found = list(lines_of_item([*before, *lines], item))
        for line in found[len(before) :]:
            self.on_line(line)
        is_cut = bool(found) and found[-1] is lines[-1]
        begun = (line for line in reversed(found) if list(lines_of_item([line], item)))
        self._beginning = next(begun, "") if is_cut else ""


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
