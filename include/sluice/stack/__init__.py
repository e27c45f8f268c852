"""The embedded local services: PostgreSQL, SeaweedFS, Kafka and Airflow on loopback, behind `sluice stack`.

| module | purpose |
|---|---|
| `orchestration`, `stopping`, `stack_status` | `up`, `down`, `status` with progress and logs |
| `starting` | the steps of one `up` |
| `stack_plan` | what is decided before anything starts: the plan, and the two kinds of steps |
| `services/` | the steps of each service |
| `folder`, `credentials`, `compose_secrets` | the data folder, changed by one command at a time; the secrets in it |
| `tcp_ports`, `port_choice` | which ports are free, and which the stack takes |
| `tools` | the programs |
| `environment`, `surroundings` | the settings of everything that runs in the stack; what a person brings to it |
| `service_processes`, `process_records` | start, record and end processes; which belong to a service |
| `bootstrap` | the script behind `make setup` |
"""
