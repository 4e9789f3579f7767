"""Many predictions at once: a grid of questions, one row for each, in grid order, on one core, many, or a cluster.

`rows` turns points into rows, `run` deals them out and writes the file.
"""
