"""What one fault did, and the table of all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """What was seen of the platform's answer to a fault.

    detected_seconds: from the fault until the platform had noticed it; unset where there is nothing to notice.
    recovered_seconds: from the fault, or from the person's next order, until rows were published again; for what must
        not touch a driver until everything around it was well again.
    start_seconds: what the new driver took from its admission to its first trigger.
    bound_seconds: how long the recovery may take at most, on a machine that has nothing else to do.
    is_untouched: whether the same drivers had to go on.
    zombies: how many drivers may run beside the ones in office, and must publish nothing.
    """

    detected_seconds: float | None
    recovered_seconds: float
    start_seconds: float | None = None
    bound_seconds: float | None = None
    is_untouched: bool = False
    zombies: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultReport:
    """One row.

    drivers: how many drivers of one stream ran at the same moment at most, by stream.
    publishing: where a table's history shows two drivers publishing; nothing in a good one.
    sent: records in Kafka when the tables were judged. lost, duplicated: rows, in all tables together.
    problem: why it did not go as it must; empty when it did.
    """

    fault: str
    stream: str
    recovery: Recovery | None
    drivers: Mapping[str, int]
    publishing: tuple[str, ...]
    sent: int
    lost: int
    duplicated: int
    problem: str

    @property
    def is_right(self) -> bool:
        """Whether nothing was lost or doubled, no two drivers published, and the platform recovered."""
        return not (self.problem or self.publishing or self.lost or self.duplicated or self.is_crowded)

    @property
    def is_crowded(self) -> bool:
        """Whether more drivers of a stream ran at once than may."""
        allowed = 1 + (self.recovery.zombies if self.recovery is not None else 0)
        return any(most > allowed for most in self.drivers.values())

    @property
    def is_within_bound(self) -> bool | None:
        """Whether the recovery kept its bound; unset where there is none."""
        if self.recovery is None or self.recovery.bound_seconds is None:
            return None
        return self.recovery.recovered_seconds <= self.recovery.bound_seconds

    def as_json(self) -> dict[str, Any]:
        """The row for a program."""
        return asdict(self) | {"is_right": self.is_right, "is_within_bound": self.is_within_bound}

    def sentence(self) -> str:
        """The row as a line of the progress."""
        seen = self.recovery
        times = "did not recover" if seen is None else f"recovered after {seen.recovered_seconds:.1f} s"
        verdict = "right" if self.is_right else f"WRONG {self.findings()}"
        return f"{self.fault} · {self.stream}: {times}, lost {self.lost}, duplicated {self.duplicated}: {verdict}"

    def findings(self) -> str:
        """Everything that is wrong, in one line."""
        crowd = f"{dict(self.drivers)} drivers at once" if self.is_crowded else ""
        return "; ".join(part for part in (self.problem, crowd, *self.publishing) if part) or "rows"


def print_reports(reports: Sequence[FaultReport], console: Console) -> None:
    """Print a row for each fault, and below it what the bound was kept by."""
    table = Table(title=f"{len(reports)} faults under traffic; rows are those of all tables together")
    for heading in (
        "fault",
        "stream",
        "detected",
        "recovered",
        "bound",
        "of it start",
        "drivers",
        "lost",
        "doubled",
        "",
    ):
        table.add_column(heading, justify="left" if heading in {"fault", "stream", ""} else "right")
    for report in reports:
        seen = report.recovery
        table.add_row(
            report.fault,
            report.stream,
            _seconds(seen.detected_seconds if seen else None),
            _seconds(seen.recovered_seconds if seen else None),
            _seconds(seen.bound_seconds if seen else None),
            _seconds(seen.start_seconds if seen else None),
            _drivers(report),
            str(report.lost),
            str(report.duplicated),
            "right" if report.is_right else escape(f"WRONG {report.findings()}"),
        )
    console.print(table)
    bounded = [report.is_within_bound for report in reports if report.is_within_bound is not None]
    console.print(
        f"{sum(report.is_right for report in reports)} of {len(reports)} right; "
        f"{sum(bounded)} of {len(bounded)} kills within their bound (driver's start + 2 triggers + 20 s)."
    )


def _drivers(report: FaultReport) -> str:
    """The most drivers of one stream at once, and how many of them published."""
    most = max(report.drivers.values(), default=0)
    return f"{most}, {'2' if report.publishing else '1'} publishing"


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.1f} s"
