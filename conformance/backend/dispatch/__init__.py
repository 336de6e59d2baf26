"""From an operator call to value functions and back: op registry, metadata, kernels by schema, copies, CPU fallback."""
