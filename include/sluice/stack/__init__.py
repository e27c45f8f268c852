"""The embedded local services: PostgreSQL, SeaweedFS, Kafka and Airflow on loopback, behind `sluice stack`.

| module | purpose |
|---|---|
| `folder` | where everything of one stack lies, and how private files are written |
| `ports`, `credentials`, `tools` | what is chosen, generated or found once, before anything starts |
| `plan` | all of it together: what a service needs to know in order to be started |
| `environment` | the settings of everything that runs in the stack, and the file they are kept in |
| `step` | the two kinds of steps: a service that stays, a preparation that ends |
| `services/` | one file for each service, found by itself |
| `processes`, `records`, `signals` | start detached, recognise, find and end processes |
| `orchestration`, `stopping`, `status` | up, down, status |
| `preflight`, `display` | what is checked before anything starts, what is shown meanwhile |
| `versions` | the version of every part, read from where it is pinned |
"""

from sluice.stack.environment import load_environment

__all__ = ["load_environment"]
