"""What was seen: frozen values without behaviour."""
