"""The DAG that brings every continuous stream to what is wanted, each minute."""

from sluice_airflow.dag_builders.platform_dags import stream_reconciler_dag

stream_reconciler = stream_reconciler_dag()
