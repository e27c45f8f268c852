"""How few files the conditions of queries read, and which order of the rows would leave them fewer."""
