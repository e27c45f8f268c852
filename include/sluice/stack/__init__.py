"""The embedded local services: PostgreSQL, SeaweedFS, Kafka and Airflow on loopback, behind `sluice stack`.

| module | purpose |
|---|---|
| `orchestration`, `stopping`, `stack_status` | `up`, `down`, `status` |
| `starting` | the steps of one `up` |
| `stack_plan` | what is decided before anything starts: the plan, and the two kinds of steps |
| `services/` | the steps of each service |
| `folder`, `credentials`, `compose_secrets` | the data folder, and the secrets in it |
| `tcp_ports`, `port_choice` | which ports are free, and which the stack takes |
| `tools`, `unprivileged` | the programs, and how one that refuses root is run |
| `environment`, `airflow_settings` | the settings of everything that runs in the stack |
| `service_processes`, `process_records`, `membership` | start, record and end processes; which belong to a service |
| `exclusive_change` | one command at a time, interrupted in order |
| `display`, `logs` | the progress on the screen, the services' log files |
| `bootstrap` | the script behind `make setup` |
"""
