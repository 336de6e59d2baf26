"""Recorded models: the operator calls of published models, run on a target. `calls.json.gz` holds the calls."""
