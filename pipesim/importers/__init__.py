"""Readers of other tools' files: each gives frozen records in SI units, and names the file in every complaint."""

STACKS = ("sglang", "vllm", "trtllm", "nccl")
"""Whose kernels a table times, by the folder names of aiconfigurator-core."""
