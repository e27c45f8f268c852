"""Pure functions: what was asked and what was seen in, a decision with a named reason out."""
