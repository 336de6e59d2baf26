"""Built-in targets, one file each; `conformance.core.loading.load_target` imports only the requested one."""
