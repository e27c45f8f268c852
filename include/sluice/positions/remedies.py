"""The one command for each finding about a position. The findings and the guide for the on-call are made from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sluice.positions.stream_position import Agreement, Witness
from sluice.publication.marks import ADOPT


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """What a finding means, and the command that shows what is to be done about it.

    command: with {stream} and {table} in it; the latter is the table that the finding names.
    does: what it does without `--dry-run`.
    """

    means: str
    command: str
    does: str

    def command_for(self, stream: str, table: str = "TABLE") -> str:
        """The command as it is typed."""
        return self.command.format(stream=stream, table=table)


_REPAIR, _LOOK = "sluice stream repair {stream} --dry-run", "sluice checkpoint check {stream}"

REMEDIES: Mapping[tuple[Witness, Agreement], Remedy] = {
    (Witness.MARK, Agreement.DIVERGED): Remedy(
        means="a table was rolled back behind the mark of the stream, or shows another history than was published",
        command=ADOPT,
        does="sets the table forward again; `--reread` and `--accept` keep it as it is",
    ),
    (Witness.MARK, Agreement.REPLACED): Remedy(
        means="a table was dropped and created again, without the rows of the old one",
        command="sluice table adopt {table} --accept --dry-run",
        does="continues without its rows; `sluice stream reset` reads the inputs again",
    ),
    (Witness.MARK, Agreement.DAMAGED): Remedy(
        means="a staging table refers to a file that is gone, as in a catalog that was set back to an earlier time",
        command=_REPAIR,
        does="empties the staging table, and has read again what the tables do not hold",
    ),
    (Witness.LEDGER, Agreement.BEHIND): Remedy(
        means="the ledger does not know the generation that the tables show: an older copy has replaced it",
        command=_REPAIR,
        does="writes the row of the generation back",
    ),
    (Witness.CHECKPOINT, Agreement.DAMAGED): Remedy(
        means="files of the checkpoint are gone or cannot be read",
        command=_REPAIR,
        does="writes the logs at the newest batch of the tables, takes damaged state one batch back, or puts a copy "
        "of a stop in its place",
    ),
    (Witness.CHECKPOINT, Agreement.AHEAD): Remedy(
        means="the checkpoint has committed more than the tables hold: they were set back",
        command=_REPAIR,
        does="takes it back to the batch that the tables hold, and has the rest read again",
    ),
    (Witness.CHECKPOINT, Agreement.BEHIND): Remedy(
        means="the checkpoint ends before the newest batch of the tables: it is an older copy",
        command=_REPAIR,
        does="moves it to the newest batch; with state, when it is one batch old or a copy of a stop is there",
    ),
    (Witness.CHECKPOINT, Agreement.DIVERGED): Remedy(
        means="the checkpoint has other end offsets of a batch than the tables",
        command=_REPAIR,
        does="writes the entry of the batch as the tables have it",
    ),
    (Witness.SOURCES, Agreement.REPLACED): Remedy(
        means="an input was deleted and created again under its name",
        command="sluice stream continue {stream} --dry-run",
        does="continues at the beginning of the new one",
    ),
    (Witness.SOURCES, Agreement.DIVERGED): Remedy(
        means="a source table was rolled back, or replaced, behind what the stream has read",
        command="sluice stream continue {stream} --dry-run",
        does="continues behind the snapshot that both have in common; the plan counts what is withdrawn",
    ),
    (Witness.SOURCES, Agreement.AHEAD): Remedy(
        means="snapshots of a source table were expired before the stream had read them",
        command="sluice stream continue {stream} --dry-run",
        does="reads their rows exactly once where that can be proved; else `--leave-out` counts what is left out",
    ),
    **{
        (witness, Agreement.UNKNOWN): Remedy(
            means="it did not answer, and nothing is concluded from that",
            command=_LOOK,
            does="looks again, once the service that is named runs",
        )
        for witness in Witness
    },
}
"""By witness, and how it stands to the others. What agrees needs none."""
