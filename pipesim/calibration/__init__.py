"""Constants of a hardware profile from measured kernels: fitted, judged on sizes left out, and written with sources."""
