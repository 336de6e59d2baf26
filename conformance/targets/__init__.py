"""The built-in targets, one file each; `conformance.core.target.load_target` imports only the one that is asked for."""
