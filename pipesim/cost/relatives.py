"""Which kernel class lends its efficiency to one that a box was never measured with.

What is carried is efficiency, a share of the GPU's own peak, never a time. The same kernel at another group size is
as good as measured. Another kernel is not: what rests on it counts as resting on the datasheet.
"""

from collections.abc import Iterator

SAME_KERNEL = {
    "moe_int4-g64": "moe_int4-g32",
    "moe_int4-g128": "moe_int4-g32",
    "moe_int4-g128-zp": "moe_int4-g32",
    "moe_int4": "moe_int4-g32",
    "moe_fp8-block": "moe_fp8",
    "gemm_fp8-block": "gemm_fp8",
    "gemm_int4-g32": "gemm_int4",
    "gemm_int4-g64": "gemm_int4",
    "gemm_int4-g128": "gemm_int4",
    "gemm_int4-g128-zp": "gemm_int4",
}
"""Kernels that differ in the grouping of their scales alone."""

OTHER_KERNEL = {
    "gemm_int4": "gemm_bf16",
    "gemm_mxfp4": "gemm_bf16",
    "gemm_int8": "gemm_fp8",
    "gemm_nvfp4": "gemm_bf16",
    "gemm_fp8": "gemm_bf16",
    "moe_mxfp4": "moe_int4-g32",
    "moe_nvfp4": "moe_int4-g32",
    "moe_int4-g32": "moe_bf16",
    "moe_int8": "moe_fp8",
    "moe_fp8": "moe_bf16",
    "mla_prefill_absorbed": "mla_prefill",
}
"""Narrow weights with 16-bit arithmetic (Marlin, arXiv:2408.11743, keeps the arithmetic rate of 16-bit weights and
streams fewer bytes at the same bandwidth), and formats without a tensor rate of their own on the GPU."""


def relatives(kernel: str) -> Iterator[tuple[str, bool]]:
    """Yields the kernel classes to look for, best first, each with whether it is the same kernel."""
    name, same = kernel, True
    while True:
        yield name, same
        if name in SAME_KERNEL:
            name = SAME_KERNEL[name]
        elif name in OTHER_KERNEL:
            name, same = OTHER_KERNEL[name], False
        else:
            return
