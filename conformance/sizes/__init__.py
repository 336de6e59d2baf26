"""`conformance sizes`: calls at the sizes of real work, their values and their peak memory beside torch CPU's.

The key insight: an index that no longer fits 32 bits, a sum of a million addends, and a table with an int64 for every
byte are invisible in small samples. `table` reads `rows.toml`, `calls` makes a call and takes its peak and its answers
chunk by chunk, `measure` does so on both sides, `worker` in a process of its own, and `script` writes findings.
"""
