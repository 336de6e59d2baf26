"""`conformance modules`: PyTorch's `module_db` and `optim_db` on a target and on torch CPU, from the same state.

`table` has the cases, `programs` makes a program of each sample, `tasks` judges a case in a worker,
`standalone/stateful.py` has the calls, and `script` writes what a user can run alone.
"""
