"""`conformance trace`: a user's script on its device, with every aten operator also computed by torch CPU.

A dispatch mode sees each operator that the device runs, fetches its inputs, and lets torch CPU compute the same call on
them. So an error of one operator does not reach the judgement of the next. The judge of the harness decides, with
float64 where rounding may explain a difference.
"""
