"""What a box and a model are: frozen descriptions, read from TOML files with units and sources."""
