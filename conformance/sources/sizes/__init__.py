"""`conformance sizes`: calls at the sizes of real work, their values and peak memory in comparison with torch CPU.

Small samples cannot show an index that overflows 32 bits, a sum of a million addends, or a table with an int64 for
every byte. `table` reads `rows.toml`, and `calls` makes a call and reads its peak and its answers chunk by chunk.
`measure` does so on both sides, `worker` runs it in a worker process, and `script` writes findings.
"""
