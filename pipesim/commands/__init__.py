"""Commands with a file of their own; `cli` puts them together."""
