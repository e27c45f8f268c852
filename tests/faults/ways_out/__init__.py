"""The damage matrix: streams by damages, and what the one command that is offered makes of each."""
