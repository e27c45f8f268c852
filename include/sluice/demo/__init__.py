"""The demonstration: real flights through the whole platform, and the proof that every one of them arrived."""
