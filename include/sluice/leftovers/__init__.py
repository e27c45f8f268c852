"""What streams left behind and nothing needs any more: listed, counted, and removed after a grace."""
