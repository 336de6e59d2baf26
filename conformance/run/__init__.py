"""The pool: tasks in worker processes that may die of them. It knows neither programs nor op_db."""
