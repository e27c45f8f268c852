"""What runs Airflow's tasks, where Airflow's own executors leave something out."""
