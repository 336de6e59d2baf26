"""`conformance upstream`: PyTorch's own device-type tests, from the user's checkout, on a target.

`table` has the tests as cases, `tasks` lists and runs them in a worker, `standalone/device_tests.py` makes them for the
device, and `script` writes what a user can run alone.
"""
