"""The tables of `docs/guides/on-call.md`, made from the code: `python -m tests.architecture.on_call_guide`."""

from __future__ import annotations

from tests.architecture.source_modules import ROOT

from sluice.failure_reasons import FailureClass, FailureReason, next_step
from sluice.supervision.restart_policy import POLICIES

FILE = ROOT / "docs" / "guides" / "on-call.md"
INTRODUCTION = """\
# On call: a stream that failed

A failure is told by its class and its reason, in the same words everywhere: the log and the state of the stream's task
in Airflow, `sluice stream status` and `show` (`--json`: `failure`), and the ledger. Clearing the task is always safe.

To be called, give the task a failure callback by Airflow's cluster policy, in `airflow_local_settings.py`: for every
task with `task.task_type == "StreamOperator"` set `task.on_failure_callback`. The callback finds the words in
`context["exception"]`: `stream`, `reason`, `failure_class`, `failure_reason` and `next_step`; `str()` of it is the
whole sentence.

After the repair, unpause the stream's DAG, or without Airflow: `sluice stream start STREAM`. Both forget the failures
of before and close the breaker. What happens by itself until then:

| class | what Sluice does |
|---|---|
"""


ENDING = """
## A batch that stands in the way

Batches become visible strictly in order, so one that cannot be published keeps all behind it waiting in the staging
tables. `sluice batch list STREAM` shows what waits, and the newest batches of the ledger; `sluice batch show STREAM 17`
everything about one. A start of the stream publishes what can be published, and that is what to try first.

When a batch is never to become visible, stop the stream and reject it:

```
sluice stream stop STREAM
sluice batch reject STREAM 17 --dry-run
sluice batch reject STREAM 17
sluice stream start STREAM
```

Only the first of those that wait can be rejected, in all tables of the stream at once, and not while a driver lives or
when one of the tables shows the batch already. The marks move past it; the ledger has it with no published rows, its
rows counted as refused; the batch behind it is the next one. Its source is not read again, and a stateful stream keeps
what the batch did to its state. A rejection that was cut short is finished by typing it again. The rejected rows lie in
files that no table refers to, until orphan removal takes them.

## A checkpoint that is left behind

When a stream cannot go on from its checkpoint (it is damaged, the source has lost what comes next, the declaration was
changed in a way that it cannot follow) and nothing can be repaired, it reads anew from the beginning that its inputs
declare:

```
sluice stream stop STREAM
sluice stream reset STREAM --dry-run
sluice stream reset STREAM
sluice stream start STREAM
```

The plan says which generation is left and which begins, at which batch and offsets the old one ends, what the next
start reads, and what that means for each output: an append gets rows of before a second time, a merge replaces them by
their keys. On a terminal the command asks; elsewhere it needs `--yes`. It is refused while a run lives or is due. In
Airflow, choose the verb `reset` in the DAG `stream_control`: its task `approve` shows the plan and waits under
*Required Actions* for a person, a day at most; rejected, or not answered, nothing is changed.

The old checkpoint is kept, and so is everything that the ledger knows of its batches: they are told apart by their
generation (`sluice batch list STREAM`). Batches that wait staged are abandoned by the next start, which its log tells;
the plan counts them before. To go back is no command: the old checkpoint lies where the plan says.
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
    return INTRODUCTION + "\n".join(classes) + "\n" + head + "\n".join(rows) + "\n" + ENDING


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
