"""The time limits of supervision. Together they say how long a stream is without a driver.

How long until a dead driver is restarted:

| the driver                       | noticed after                                | its run is closed after        |
|----------------------------------|----------------------------------------------|--------------------------------|
| ended and recorded its end       | one poll of the task's trigger, 2 s          | it is closed already           |
| was killed, its parent saw it    | the same                                     | it is closed already           |
| is gone together with its parent | `HEARD_WITHIN`; the reconciler's next minute | `EXIT_RECORD_SECONDS`          |
| cannot be observed: host lost    | `LEASE_SECONDS` after its newest heartbeat   | `HEARD_AGAIN_SECONDS`          |
| lived in a replaced container    | at its recorded end; killed with it: the same| the same                       |
| is alive and silent              | the same                                     | those and `STOP_GRACE_SECONDS` |

The next start follows at once for most failures, and after a growing delay when failures repeat: see
`sluice.supervision.restart_policy`. `LEASE_SECONDS` is in `sluice.ledger.run_leases`; the limits by which a driver
without its ledger stops by itself are in `sluice.supervision.held_lease`.
"""

from __future__ import annotations

from datetime import timedelta

LAUNCHED_WITHIN = timedelta(seconds=90)
"""From admission to a recorded process. The driver's parent tries for 30 seconds to record it, and no driver begins
without: a run older than this without a process has no driver, and closing it makes sure that none begins."""

STARTS_WITHIN = timedelta(seconds=15)
"""What the start of a driver takes of a core. A host begins at most as many starts in it as it has cores, when they are
restarts after failures: those of one stream are not delayed, those of all after a reboot are."""

LEAST_STARTS = 2
"""Starts that a host of one core may begin in that time."""

HEARD_WITHIN = timedelta(seconds=60)
"""How old a heartbeat may be. Drivers beat every two seconds; a long pause of a JVM on a full machine is shorter."""

AHEAD_AT_MOST = timedelta(seconds=5)
"""How far in the future a sign may be. One beyond was recorded before the database's clock was set back."""

STOPPED_WITHIN = timedelta(seconds=120)
"""From the request to the end of the driver, which finishes its batch first."""

LOOK_AGAIN_AFTER = timedelta(seconds=30)
"""How soon a stream is observed again when no event calls for it earlier."""

LEFT_TO_ITS_TASK = timedelta(seconds=60)
"""How long after a run's end, or after a request, the next start is left to the stream's own task. Then the reconciler
starts it; beside a paused DAG, which has no task, after a run's end at once."""

EXIT_RECORD_SECONDS = 10.0
"""How long the parent of a driver that is gone may take to record its exit, before the run is closed without one."""

HEARD_AGAIN_SECONDS = 10.0
"""How long a silent driver may take to report again before it loses its place: five heartbeats. After the database's
clock was set forward, or the database was away for long, every lease looks expired until the next heartbeat."""

STOP_GRACE_SECONDS = 20.0
"""Between SIGTERM and SIGKILL, for a driver that did not obey the request to stop."""
