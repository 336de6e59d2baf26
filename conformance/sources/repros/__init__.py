"""`conformance repros`: every known bug of PyTorch, tried on a target.

`table` reads the index of reported bugs and the files of docs/findings/, `tasks` judges one repro in a worker,
`standalone/repro.py` has the judge, and `script` writes what a user can run alone.
"""
