"""Drivers, Airflow and its tasks meet every fault in turn, while flights keep flowing through the demo's streams.

    .venv/bin/python -m tests.faults.supervision_drill [--kills 20] [--seed 2013] [--only kill zombie …] [--json]

On a stack of its own: the demo's three continuous streams, and a replayer that goes on through every fault. After each
fault the replayer holds its breath until everything is read, and all tables are compared with what lies in Kafka by a
reader that shares nothing with the writers. Prints a row for each fault; ends with 1 when a row is lost or doubled, two
drivers of a stream published, or the platform did not come back by itself. Times are reported, not judged: the bound of
a kill holds on a machine that has nothing else to do.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import track
from tests.faults.supervision import airflow_faults, process_faults
from tests.faults.supervision.judging import UNJUDGED
from tests.faults.supervision.measuring import breaches
from tests.faults.supervision.position_faults import LedgerIs, lose_checkpoint
from tests.faults.supervision.report import FaultReport, Recovery, print_reports
from tests.faults.supervision.scene import Scene, open_scene
from tests.fixtures.stack import stack_in

from sluice.demo.report import BRONZE, GOLD, SILVER, STREAMS
from sluice.errors import SluiceError

COMPONENTS = ("airflow-scheduler", "airflow-triggerer", "airflow-dag-processor", "airflow-api-server")
FAULTS = ("component", "clear", "mark", "trigger", "pause", "worker", "zombie", "freeze", "kill", "lose")

_INTERRUPTED = 130
"""The exit code after Ctrl-C, as a shell has it. Source: POSIX, 128 + SIGINT"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stroke:
    """What befalls one stream. stream: "all" when it is none of a stream's own."""

    stream: str
    act: Callable[[Scene], Recovery]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault, or several of the same kind at once, each with a stream of its own."""

    kind: str
    name: str
    strokes: tuple[Stroke, ...]


def all_faults(*, kills: int, at_once: int, lots: random.Random) -> list[Fault]:
    """Every fault of the drill, in turn. Each stream is killed as often as the others, in an order that is drawn.

    Parameters
    ----------
    kills: how many drivers are killed. at_once: of how many streams between one calm and the next.
    """
    kill = "SIGKILL of the driver"
    victims = [lots.sample(STREAMS, k=len(STREAMS)) for _ in range(-(-kills // len(STREAMS)))]
    in_turn = [_killing(stream, lots) for round_of_all in victims for stream in round_of_all][:kills]
    together = [tuple(in_turn[first : first + at_once]) for first in range(0, kills, at_once)]
    components = [_befalling("all", process_faults.kill_component, one) for one in COMPONENTS]
    named = zip(COMPONENTS, components, strict=True)
    zombie = "SIGSTOP, take-over, SIGCONT"
    return [
        *(Fault(kind="component", name=f"kill -9 of {name}", strokes=(stroke,)) for name, stroke in named),
        _single("clear", "task cleared", SILVER, airflow_faults.clear_task),
        _single("mark", "task marked failed", SILVER, airflow_faults.mark_failed),
        _single("mark", "task marked success", BRONZE, airflow_faults.mark_success),
        _single("trigger", "DAG triggered twice", BRONZE, airflow_faults.trigger_twice),
        _single("pause", "DAG paused", SILVER, airflow_faults.pause_dag),
        _single("worker", "kill -9 of a worker", GOLD, process_faults.kill_worker),
        _single("zombie", zombie, SILVER, process_faults.wake_zombie),
        _single("zombie", zombie, BRONZE, process_faults.wake_zombie),
        _single("freeze", "SIGSTOP for good", GOLD, process_faults.freeze_driver),
        *(Fault(kind="kill", name=kill, strokes=strokes) for strokes in together),
        *(_losing(BRONZE, ledger) for ledger in LedgerIs),
        _losing(SILVER, LedgerIs.WHOLE, is_copied=True),  # it has state
    ]


def _single(kind: str, name: str, stream: str, act: Callable[[Scene, str], Recovery]) -> Fault:
    return Fault(kind=kind, name=name, strokes=(_befalling(stream, act, stream),))


def _losing(stream: str, ledger: LedgerIs, *, is_copied: bool = False) -> Fault:
    def act(scene: Scene) -> Recovery:
        return lose_checkpoint(scene, stream, ledger=ledger, is_copied=is_copied)

    name = f"checkpoint removed{', copied' * is_copied}, ledger {ledger}"
    return Fault(kind="lose", name=name, strokes=(Stroke(stream=stream, act=act),))


def _befalling(stream: str, act: Callable[[Scene, str], Recovery], whom: str) -> Stroke:
    return Stroke(stream=stream, act=lambda scene: act(scene, whom))


def _killing(stream: str, lots: random.Random) -> Stroke:
    moment = lots.uniform(0, process_faults.LONGEST_MOMENT_SECONDS)
    is_whole_group = lots.random() < 0.5

    def act(scene: Scene) -> Recovery:
        return process_faults.kill_driver(scene, stream, moment_seconds=moment, is_whole_group=is_whole_group)

    return Stroke(stream=stream, act=act)


def carry_out(scene: Scene, fault: Fault) -> list[FaultReport]:
    """One fault from calm to calm, and what the tables hold afterwards: a row for each stroke."""
    judgement, problems = UNJUDGED, list[str]()
    publishing: tuple[str, ...] = ()
    scene.drivers.begin()
    outcomes = _strike(scene, fault.strokes)
    try:
        if any(problem for _, problem in outcomes):
            scene.mend()
        scene.traffic.pause()
        scene.await_calm()
        judgement = scene.judge.judge(scene.traffic.plans)
        publishing = tuple(breach for stream in STREAMS for breach in breaches(scene.history(stream)))
    except SluiceError as error:
        problems.append(f"never calm again: {type(error).__name__}: {error}")
    scene.reset_failures()
    scene.traffic.go_on()
    drivers = scene.drivers.most_at_once()
    return [
        FaultReport(
            fault=fault.name,
            stream=stroke.stream,
            recovery=recovery,
            drivers=drivers,
            publishing=publishing,
            sent=judgement.sent,
            lost=judgement.lost,
            duplicated=judgement.duplicated,
            problem="; ".join(part for part in (problem, *problems, *judgement.problems) if part),
        )
        for stroke, (recovery, problem) in zip(fault.strokes, outcomes, strict=True)
    ]


def _strike(scene: Scene, strokes: Sequence[Stroke]) -> list[tuple[Recovery | None, str]]:
    """Every stroke at once. One by itself strikes from this thread: only that one may restart services."""

    def strike(stroke: Stroke) -> tuple[Recovery | None, str]:
        try:
            return stroke.act(scene), ""
        except Exception as error:  # noqa: BLE001  # whatever a fault meets is its row's, and no end of the drill
            return None, f"{type(error).__name__}: {error}"

    if len(strokes) == 1:
        return [strike(strokes[0])]
    with ThreadPoolExecutor(len(strokes), thread_name_prefix="stroke") as pool:
        try:
            return list(pool.map(strike, strokes))
        except KeyboardInterrupt:
            scene.platform.stopped.set()  # whoever waits, asks it
            raise


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out every fault and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=21, help="how many drivers are killed")
    parser.add_argument("--at-once", type=int, default=1, choices=(1, 3), help="drivers that are killed together")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    parser.add_argument("--only", nargs="*", default=FAULTS, choices=FAULTS, help="kinds of faults; all when unset")
    parser.add_argument("--pace", type=float, default=1.0, help="hours of flights in one second")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    options = parser.parse_args(arguments)
    for word in (signal.SIGINT, signal.SIGTERM):  # in the background SIGINT is ignored, and the stack must end, too
        signal.signal(word, signal.default_int_handler)
    progress = Console(stderr=True, highlight=False)
    progress.print(f"seed {options.seed}")
    lots = random.Random(options.seed)  # noqa: S311  # which fault meets whom, not a secret
    everything = all_faults(kills=options.kills, at_once=options.at_once, lots=lots)
    faults = [fault for fault in everything if fault.kind in options.only]
    with tempfile.TemporaryDirectory(prefix="sluice-drill-") as folder:
        reports: list[FaultReport] = []
        is_interrupted = False
        try:
            _carry_out_all(faults, Path(folder).resolve() / "data", options, progress, reports=reports)
        except KeyboardInterrupt:
            is_interrupted = True
            progress.print("Interrupted: what follows is what was seen until then.")
    if options.json:
        found = {"seed": options.seed, "faults": [report.as_json() for report in reports]}
        print(json.dumps(found, indent=1))  # noqa: T201  # the answer of the program
    else:
        print_reports(reports, Console(highlight=False, width=180))
    if is_interrupted:
        return _INTERRUPTED
    return 0 if all(report.is_right for report in reports) else 1


def _carry_out_all(
    faults: Sequence[Fault],
    data: Path,
    options: argparse.Namespace,
    progress: Console,
    *,
    reports: list[FaultReport],
) -> None:
    """Carry out the faults. reports: takes each as soon as it is there."""
    os.environ["SLUICE_DATA"] = str(data)
    with (
        stack_in(data),
        open_scene(data, seed=options.seed, hours_per_second=options.pace, console=progress) as scene,
    ):
        for number, fault in enumerate(track(faults, "faults", console=progress, disable=not progress.is_terminal), 1):
            found = carry_out(scene, fault)
            reports.extend(found)
            for report in found:
                progress.print(f"{number:3d} of {len(faults)}  {report.sentence()}", soft_wrap=True, markup=False)


if __name__ == "__main__":
    sys.exit(main())
