"""Readers of other tools' files: each gives frozen records in SI units, and names the file in every complaint."""

import re

STACKS = ("sglang", "vllm", "trtllm", "nccl")
"""Whose kernels a table times, by the folder names of aiconfigurator-core."""

COLOUR = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|\([A-Z0-9])|\[\d{1,3}(?:;\d{1,3})*m")
"""What a terminal is told about colours, in output that was caught from one; in pasted text the escape may be lost."""


class RefusedError(Exception):
    """A part of a file that cannot be used: key, given, wanted and hint of a ProfileError whose file is not known."""

    def __init__(self, key: str, given: str, wanted: str, hint: str = "") -> None:
        super().__init__(key, given, wanted, hint)
        self.key, self.given, self.wanted = key, given, wanted
