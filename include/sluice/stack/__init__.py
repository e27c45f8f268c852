"""The embedded local services: PostgreSQL, SeaweedFS, Kafka and Airflow on loopback, behind `sluice stack`.

| module | purpose |
|---|---|
| `orchestration`, `stopping`, `stack_status` | `up`, `down`, `status` with progress and logs |
| `starting` | the steps of one `up`, and how processes are started |
| `stack_plan` | what is decided before anything starts: the programs, the plan, its ports, and the two kinds of steps |
| `services/` | the steps of each service |
| `folder` | the data folder, changed by one command at a time |
| `credentials`, `compose_secrets` | the secrets of a stack, and those of docker-compose.yaml |
| `environment`, `surroundings` | the settings of everything that runs in the stack; what a person brings to it |
| `stack_records` | the ports and processes of a stack, and which processes belong to a service |
| `bootstrap` | the script behind `make setup` |
"""
