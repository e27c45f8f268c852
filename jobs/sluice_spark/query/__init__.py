"""A stream's one query: inputs, transformation, outputs, and the numbers counted on the way."""
