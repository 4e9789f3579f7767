"""Readers of other tools' files: each gives frozen records in SI units, and names the file in every complaint."""

import re

STACKS = ("sglang", "vllm", "trtllm", "nccl")
"""Whose kernels a table times, by the folder names of aiconfigurator-core."""

COLOUR = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|\([A-Z0-9])|\[\d{1,3}(?:;\d{1,3})*m")
"""What a terminal is told about colours, in output that was caught from one; in pasted text the escape may be lost."""
