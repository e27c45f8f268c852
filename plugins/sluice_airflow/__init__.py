"""How Sluice acts inside Airflow: operators, triggers, DAG builders."""
