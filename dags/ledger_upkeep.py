"""The DAG that keeps the ledger small."""

from sluice_airflow.dag_builders.ledger_upkeep import ledger_upkeep_dag

ledger_upkeep = ledger_upkeep_dag()
