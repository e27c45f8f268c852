"""Quality of tables: what rules and checks found over time, in words and pages, and what to declare next."""
