"""The Spark session of a job: its settings, its JVM, and the user's code that it loads."""
