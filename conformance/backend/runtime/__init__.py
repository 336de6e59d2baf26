"""tinygrad's scheduler and what surrounds it: replay, caches, loop kernels, the toolchain, counters."""
