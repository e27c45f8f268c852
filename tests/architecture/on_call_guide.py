"""The tables of `docs/guides/on-call.md`, made from the code: `python -m tests.architecture.on_call_guide`."""

from __future__ import annotations

from collections.abc import Iterator

from tests.architecture.source_modules import ROOT

from sluice.failure_reasons import FailureClass, FailureReason, next_step
from sluice.positions.judge_position import REMEDIES
from sluice.supervision.limits import POLICIES

FILE = ROOT / "docs" / "guides" / "on-call.md"
INTRODUCTION = """\
# On call: a stream that failed

A failure has a class and a reason, which are the same words everywhere: in the log and the state of the stream's task
in Airflow, in `sluice stream status` and `show` (`--json`: `failure`), and in the ledger. Clearing the task is always
safe.

To be called, give all tasks of Sluice a failure callback by Airflow's cluster policy, in `airflow_local_settings.py`:

```python
SLUICE = {"stream", "streams", "platform", "backfill", "broken"}  # tags of Sluice's DAGs


def task_policy(task):
    if SLUICE & set(task.dag.tags):
        task.on_failure_callback = call


def call(context):
    error = context["exception"]
    for alert in getattr(error, "alerts", ()):
        if alert.is_new:
            page(alert.stream, alert.reason, alert.sentence)
    if not hasattr(error, "alerts"):  # the settings, the ledger or Airflow itself
        page(context["dag"].dag_id, "", str(error))
```

`page` is yours. A stream that is given up fails its own task, once for each run that it is given up for; beside a
paused DAG, which has no task, the reconciler reports it. Every other unhealthy state fails the task of the DAG
`stream_reconciler`, each minute as long as it lasts: stalled, late, crash looping, silent, not observed, every row of
its newest batch rejected, a deleted or broken declaration, a changed mode, files that differ between hosts, a pause
that no person is known to have made, a stream that could not be reconciled, few free connections of the ledger, and its
clock when it was set back. `alert.is_new` is set the first time only. The ledger has the same as events: `alert` when a
person is alerted to a state, `recover` when it is over (`sluice stream events STREAM`). An increment fails its own
task, and leaves the same two events; one that is overdue by one interval, and by ten minutes at least, is late.

The tasks that supervise use the Airflow pool `supervision` (`airflow pools set supervision 16 'What supervises
streams'`), so that no other task keeps them waiting. The DAG `checkpoint_health` fails when the reconciler has begun no
pass for five minutes: it is paused, its pool is missing or full, or the scheduler is down.

Whether a stream is stalled is seen at its sources: by the unread records or rows of Kafka and Iceberg, the unread files
of folders and Delta tables, and the shards of Kinesis that hold unread records; a `rate` always has rows to read. Three
things cannot be seen, and such a stream counts as healthy while its driver is heard: what waits in a socket, what
`continuous_processing` has read, and what a stream that begins at the newest record misses before its first batch.

After the repair, unpause the stream's DAG, or run `sluice stream start STREAM`. Both reset
the failure count and close the breaker. What Sluice does by itself until then:

| class | what Sluice does |
|---|---|
"""


ENDING = """
## What happened, and what was tried

`sluice stream events STREAM` lists, newest first, every decision about a stream and every command of a person, with
who decided and why: a `launch` names the failure that it follows, a `give_up` why no restart is left, a `suspend` that
the DAG was paused, an `ignore_pause` that it was paused within a minute of a start, or by no person that is known, so
that the stream runs on.
`--since '2 hours'` and `--limit 50` choose, `--follow` continues, `--json` is for programs; `sluice stream show STREAM`
has the newest ones. `sluice table events TABLE` lists the maintenance steps of a table and the commands that changed
it.

An event is saved before it is carried out, so the newest one may be about to happen. Whether it worked is in the runs
and batches (`sluice stream show STREAM`) and in the maintenance runs (`sluice table history TABLE`). Events are kept
for `SLUICE_EVENTS_KEPT_DAYS` and never changed.

## Records that are rejected

When a stream rejects more records than usual, read why: *Quarantine* on its page in Airflow shows the newest ones with
reason, position and value, to those who have [the permission](pages.md#records-in-quarantine); columns that the
declaration masks are masked. The numbers are in its charts and batches. All records are in the table
`quarantine.STREAM`, each with the reason, its kind and the path of the column or field, its position in the source,
and its value as it came:

```sql
SELECT kind, path, count(*), min(reason), min(refused_at), max(refused_at) FROM quarantine.STREAM GROUP BY kind, path
```

A rejected record is not processed again by itself; `resolved_at` is null while it is open. After a repair of the
transformation or the declaration:

```bash
sluice quarantine show STREAM              # how many are open, by kind
sluice quarantine replay STREAM            # shows what the code of today makes of them, asks, publishes it
sluice quarantine discard STREAM --kind not_json   # gives them up; they stay in the table
```

A replay publishes each record once, beside the live stream (decision 0087); it is refused where that cannot be known:
the stream keeps a state, replaces rows, or makes several rows of a record. A record is read again by its position where
the topic or table still holds it; where it does not, the value is taken from the quarantine if a decoder has rejected
it. `--dry-run` shows the effect, `--kind`, `--position` and `--batch` choose. One replay of a stream runs at a time.
Rows that the table holds already are refused, because code may have published a record and rejected it, too: where
other records gave those rows, add `--allow-repeated`.
When the table is rolled back below a replay, its records are open again at the next start, replay or discard. Else
`sluice backfill STREAM` computes the interval again where the stream declares a backfill, and `sluice stream refresh
STREAM` the table.

## A batch that cannot be published

Batches become visible strictly in order, so all later batches wait in the staging tables behind one that cannot be
published. `sluice batch list STREAM` shows the waiting batches, and the newest batches of the ledger; `sluice batch
show STREAM 17` shows everything about one. First start the stream: a start publishes every batch that can be published.

To drop a batch for good, stop the stream and reject the batch:

```
sluice stream stop STREAM
sluice batch reject STREAM 17 --dry-run
sluice batch reject STREAM 17
sluice stream start STREAM
```

On a terminal the command asks; elsewhere it needs `--yes` ([commands](commands.md)).

*Stop*, *Reject batch* and *Start* on the stream's page in Airflow do the same, as does `reject-batch` in the DAG
`stream_control`.

Only the first waiting batch can be rejected, in all tables of the stream at once, and not while a driver lives or when
one of the tables shows the batch already. The command holds the stream's lease meanwhile, so no driver begins. It first
records the batch as rejected, with no published rows and all its rows as refused; then the marks move past it, and the
batch behind it is the next one. No sink beside the tables gets the batch. Its source is not read again, and a stateful
stream keeps the changes of the batch in its state. When the command is interrupted after the record, the next start of
the stream completes the rejection; typing the command again does it at once, and reports what was left to do. The
rejected rows stay in files that no table refers to, until `sluice table remove-orphans TABLE` moves them to a trash.

## A ledger that was replaced by an older copy

After a failover to a replica that was behind, or a restored backup, the ledger does not know what happened since. What
follows is done by itself:

- A driver that the ledger still knows continues. The records of the batches since the copy are missing from the ledger;
  the rows are in the tables.
- A driver that the ledger does not know ends within seconds (`lease_lost`), and the stream's task starts another one.
- A token is never lower than one that the tables have seen, so the next driver is not taken for an old one.
- A batch that was rejected since the copy stays rejected: the tables' history says so. The next start records it again
  as rejected, and completes the rejection in every table.

What a person requested since the copy is forgotten, too: stop or start again what was stopped or started meanwhile. A
generation that the ledger has forgotten (a *reset*, a *continue* or a refresh since the copy) is written back from the
marks and the checkpoint: `sluice stream repair STREAM`, also when nothing of the ledger is left.

## An upgrade, and the way back

Take a backup of the ledger, bring the new Sluice to every host of Airflow, and run `sluice ledger upgrade` once. Live
drivers need not stop for it: they keep the code that they were started with, report and publish on the upgraded ledger
as before, and are replaced when you say so: `sluice stream restart --older-than VERSION --at-once 4` (`--dry-run` names
them). Each run shows the version that started it, on the stream's page and in `sluice stream show`.
While a backup of the ledger runs, the upgrade waits for it in steps of seconds. Do not leave older programs beside the
new ones: what they cannot read of a stream is reported as *not reconciled*.

The schema of a ledger is never taken back. Whether the way back is open, `sluice ledger status` of the former Sluice
says:

- "… of a newer Sluice, with which this one may work": bring it back to every host, and restart each stream
  (`sluice stream restart STREAM`). Its drivers publish on the upgraded ledger, each row once.
- "The ledger is for Sluice VERSION and later": there is none but the backup. Every command of the former Sluice is
  refused like that; restart its drivers with the new one at once.

A backup that is restored has forgotten what happened since: see the section above.

After a reboot a host restarts as many drivers in 15 seconds as it has cores; the others wait as *restarting*
(`host_busy`).

## A batch of an output that is no longer declared

A batch is published as it was declared when it was staged: in that mode, into that table. When a driver dies between
staging and publication, and the output is then renamed, removed, declared for another table, or the quarantine is
switched off, nothing publishes the batch any more. The start is refused with the batches and their rows until they are
published or abandoned by name:

```
sluice batch list STREAM
sluice batch publish STREAM OUTPUT --dry-run
sluice batch publish STREAM OUTPUT
sluice batch abandon STREAM OUTPUT
```

Both ask, unless `--yes` is given. `publish` adds the rows to the table that they were staged for. It is refused for
mode `merge`, which only a driver can do: declare the output as it was and start the stream once. `abandon` discards the
rows; a batch that Spark had not committed runs again, for the outputs that are declared now. An output that is declared
again later continues where the checkpoint stands then.

## A checkpoint that was lost, damaged or set back

Where a stream stands is known four times: the marks on its tables say it, the ledger, the checkpoint, and the sources.
`sluice checkpoint check STREAM` compares them, and the start of a driver names the one that disagrees. One command
says what is to be done about it, and does it without `--dry-run`. A witness is written back from the others:

```
sluice stream repair STREAM --dry-run
sluice stream repair STREAM --start
```

`--start` starts the stream behind it; a driver that still runs is stopped first (`sluice stream stop STREAM`).

FINDINGS

The plan says how many rows are read again. None is lost by a repair, and none is doubled in a table; outputs that know
no batch by its number (Kafka, console, memory) get them a second time, as the plan says. It is refused, with what would
be lost, where state is gone for good or a source kept in the checkpoint alone what was read (files); then a reset is
left. A repair that is interrupted leaves a checkpoint from which no driver starts: type it again.

A stream with state is copied at each orderly stop. `sluice stream show STREAM` says behind which batch the newest copy
stands and how old it is, and a repair takes it where state is lost. When the tables are further, the next start runs
the batches between again before it begins, a second or a few for each, and publishes nothing of them. So a stream that
runs for weeks without a stop has an old copy: `sluice stream restart STREAM` makes a new one, and with
`state: {{backup_every: 6 hours}}` in its declaration the driver makes one meanwhile. `sluice checkpoint
rehearse STREAM` puts the newest copy into a folder of its own and runs the batch at which it stands again, beside the
stream and without publishing; the DAG `copy_rehearsals` does that every week for streams that declare `backup_every`.
`sluice stream show` then says how long it took: so long a repair needs at least, besides the batches behind the copy.

A mark that somebody removed from a table's properties is restored by the next start, from the previous metadata of the
table or from its history. A batch that was only staged, and that the checkpoint forgot, needs nothing either.

## A table that was rolled back, or created again

Rows that a stream has published are not in its table any more, and every start is refused: publishing behind them would
silently lose them for good. Whether it was a mistake only a person knows. One command, one of three ways; the streams
that write the table are stopped:

```
sluice table adopt TABLE --undo --dry-run
sluice table adopt TABLE --undo
sluice table adopt TABLE --reread
sluice table adopt TABLE --accept
```

| way | what becomes of a rolled back table |
|---|---|
| `--undo` | main is set to where the marks stand; later commits of others are named, and a tag keeps them a week |
| `--reread` | the marks are set back, and `sluice stream repair` has what was taken out read again |
| `--accept` | it stays as it is, without the rows that were taken out |

A table that was created again can be accepted, without the rows of the old one; an undo is refused, because the catalog
does not have the old one, and so is a reread: `sluice stream reset` reads every input again.

The plan says how many rows are hidden, read again or gone, also those of others, names the streams that read the table,
and asks. A reader is continued after that and not before: `sluice stream continue` refuses while its source waits. An
adoption that is interrupted is completed by typing it again.

## Stream and tables back to an earlier batch

After a wrong transformation or wrong input was published, a stream and its tables go back together; what came after the
batch is read again, with the code as it is then:

```
sluice stream stop STREAM
sluice batch list STREAM
sluice stream rewind STREAM --to-batch 17 --dry-run
sluice stream rewind STREAM --to-batch 17
sluice stream start STREAM
```

`--to-time 2026-11-27T06:00:00` takes the newest batch that all its tables showed then (UTC). Main of each table is set
to the newest snapshot that shows the batch, and a tag keeps what it hides for a week; marks and checkpoint follow.
It is refused, with what would be lost, where others have written rows into a table since, where the snapshots of the
batch were expired, where an input does not have the records any more, where a later batch was rejected or is held, and
where an output is not an Iceberg table. Streams that have read what goes are named with batches and rows, and with the
command that takes each of them back first. `--with-readers` does that in one plan: each of them stopped, the last
reader first, or none when one is refused; `--leave-readers` lets them keep it, and `sluice stream continue` counts that
later. A rewind that is interrupted is completed by typing it again.

## A checkpoint that is abandoned

When a stream cannot continue from its checkpoint (its state is lost for good, the source has lost the next records, or
the declaration was changed in a way that the checkpoint cannot follow) and a repair is refused, reset the stream. It
then rereads its inputs from their declared beginning:

```
sluice stream stop STREAM
sluice stream reset STREAM --dry-run
sluice stream reset STREAM
sluice stream start STREAM
```

The plan shows which generation ends and which begins, at which batch and offsets the old one ends, what the next start
reads, and the effect on each output: an append gets earlier rows a second time, a merge replaces them by their keys. On
a terminal the command asks; elsewhere it needs `--yes`. It is refused while a run is live or the stream's desired state
is `running`. In Airflow, choose the verb `reset` in the DAG `stream_control`: its task `approve` shows the plan and
waits under *Required Actions* for a person, a day at most; without an approval nothing is changed.

The old checkpoint is kept for `SLUICE_LEFTOVERS_KEPT_DAYS` (`sluice stream leftovers`), and the records of its batches
stay in the ledger, where they differ by their generation (`sluice batch list STREAM`). The next start abandons batches
that are still staged, and logs it; the plan shows their number beforehand. There is no command to go back: the old
checkpoint is at the path that the plan shows.
"""


def render() -> str:
    """The whole page."""
    classes = [f"| `{one}` | {_policy(one)} |" for one in FailureClass]
    head = "\n".join(["", "| class | reason | it means that | what you do |", "|---|---|---|---|", ""])
    order = list(FailureClass)
    reasons = sorted(FailureReason, key=lambda reason: order.index(reason.failure_class))
    rows = [
        f"| `{reason.failure_class}` | `{reason}` | {reason.means} | {next_step(reason, stream='STREAM')} |"
        for reason in reasons
    ]
    ending = ENDING.replace("FINDINGS", "\n".join(_findings()))
    return INTRODUCTION + "\n".join(classes) + "\n" + head + "\n".join(rows) + "\n" + ending


def _findings() -> Iterator[str]:
    """A row for each finding about a position; it ends with its command."""
    yield "| who | is | it means that | what the command does | the command |"
    yield "|---|---|---|---|---|"
    for (witness, agreement), one in REMEDIES.items():
        yield f"| {witness} | {agreement} | {one.means} | {one.does} | `{one.command_for('STREAM')}` |"


def _policy(failure_class: FailureClass) -> str:
    policy = POLICIES[failure_class]
    if policy.most_tries == 0:
        return "It stops at once: another start would only repeat it."
    times = f"{policy.tries_factor} times `restart.attempts`" if policy.tries_factor > 1 else "`restart.attempts`"
    tries = f"at most {policy.most_tries}" if policy.most_tries is not None else times
    first = "at once, and then " if policy.is_first_at_once else ""
    wait = f"{policy.delay_factor:.0f} times `first_delay`" if policy.delay_factor > 1 else "`first_delay`"
    return f"It starts again, {tries} in a row: {first}after a wait of {wait} that doubles up to `longest_delay`."


if __name__ == "__main__":
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(render())
