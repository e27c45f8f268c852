"""What the pages in Airflow show: queries to frozen values, values to HTML and SVG. Nothing here knows Airflow."""
