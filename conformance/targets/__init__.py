"""Built-in targets, one file each; `conformance.engine.loading.load_target` imports only the requested one."""
