"""`conformance.check` and `conformance operator`: one operator of the user, judged against a reference.

A custom operator is one more source of subjects: each call is a program with one step. `subject` describes the
operator, `inputs` the user's description of its inputs, and `calls` makes the calls. `table` lists the checks, and
`checks` has their procedures. A procedure runs two sides, such as the reference and the operator, and compares their
observations. `examine` runs procedures in a fork of this process (`forks`), `finding` shrinks a failing call, `script`
writes it as a script, and `api` is `conformance.check`.
"""
