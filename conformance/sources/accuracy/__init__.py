"""`conformance accuracy`: the errors of a target and of torch CPU, side by side, against a better reference.

At the tolerances of op_db, on its small samples, an op that sums in too narrow a dtype passes. Its error shows only at
the sizes of networks, and it counts as a fault only in comparison with torch CPU's error. `table` reads `ops.toml`,
`reference` computes exact answers, `measure` and `errors` compare, `worker` runs the measurement in worker processes,
and `script` writes findings.
"""
