"""`conformance.check` and `conformance operator`: one operator of the user, judged against a reference.

A custom operator is one more source of subjects: each call is a program with one step. `subject` describes the
operator, `inputs` the user's description of its inputs, and `calls` makes the calls. `table` lists the checks, and
`checks` has their procedures. The checks themselves are in `standalone/operator_checks.py`: one observes a call under
two conditions, or the reference's and the operator's call, and compares the observations. `examine` runs procedures in
a fork of this process (`forks`), and `finding` shrinks a failing call. `script` writes it as a script that carries the
check, and `api` is `conformance.check`.
"""
