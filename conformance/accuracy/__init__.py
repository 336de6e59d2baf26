"""`conformance accuracy`: the error of a target and of torch CPU, side by side, against a better reference.

The key insight: at the tolerances of op_db, on its small samples, an op that sums in too narrow a dtype looks right.
Its error is seen at the sizes of networks, and only beside that of torch CPU is it a fault. `table` reads `ops.toml`,
`reference` gives exact answers, `measure` and `errors` compare, `worker` does so in processes of their own, `script`
writes findings.
"""
