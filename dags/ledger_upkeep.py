"""The DAG that keeps the ledger small."""

from sluice_airflow.dag_builders.platform_dags import ledger_upkeep_dag

ledger_upkeep = ledger_upkeep_dag()
