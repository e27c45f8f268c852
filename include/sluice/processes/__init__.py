"""Operating system processes: how one is identified, observed and ended."""
