"""Writing the profile of a target: `conformance init` (`python -m conformance.profile`)."""
