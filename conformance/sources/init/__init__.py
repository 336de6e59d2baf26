"""Profile of a target, written by `conformance init` (`python -m conformance.sources.init`)."""
