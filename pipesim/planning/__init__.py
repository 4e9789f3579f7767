"""Which split and which settings: every legal candidate in closed form, the front-runners simulated, the rest refused.

`question` says what is asked and how plans are judged, `space` lists candidates, `evaluate` prices and simulates them,
`search` chooses which to simulate, `odds` says how sure the ranking is.
"""
