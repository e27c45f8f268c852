"""The embedded local services: PostgreSQL, SeaweedFS, Kafka and Airflow on loopback, behind `sluice stack`.

| module | purpose |
|---|---|
| `orchestration`, `stopping`, `stack_status` | `up`, `down` and its processes, `status` with progress and logs |
| `starting` | the steps of one `up` |
| `stack_plan` | what is decided before anything starts: the programs, the plan, its ports, and the two kinds of steps |
| `services/` | the steps of each service |
| `folder`, `compose_secrets` | the data folder, changed by one command at a time; the secrets in it |
| `environment`, `surroundings` | the settings of everything that runs in the stack; what a person brings to it |
| `stack_records` | the ports and processes of a stack, and which processes belong to a service |
| `bootstrap` | the script behind `make setup` |
"""
