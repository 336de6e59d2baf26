"""`conformance.check` and `conformance operator`: one operator of the user, judged against a reference.

A custom operator is one more source of subjects: each call is a program with one step. `subject` describes the
operator, `inputs` the user's description of its inputs, and `calls` makes the calls. `checks` is the table of checks.
A check runs two sides, such as the reference and the operator, and compares their observations. `forks` runs
checks in a fork of this process, `finding` shrinks a failing call to a script, and `api` is `conformance.check`.
"""
