"""Airflow's own things in the words of the ports: what `composition` needs of Airflow."""
