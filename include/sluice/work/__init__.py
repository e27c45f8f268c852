"""Bounded work of Spark: what is asked for, the applications that do it, and how they are started and awaited."""
