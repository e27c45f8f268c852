"""When DAGs run, where Airflow has no timetable for it."""
