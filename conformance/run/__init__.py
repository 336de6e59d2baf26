"""Pools of worker processes that may die of their tasks. Independent of programs and op_db."""
