"""`python -m pipesim` is `pipesim`."""

from pipesim.cli import main

main()
