"""The step families: what a program can do, one table row an op, with its drawing rule and its CPU meaning."""
