"""Contents of torch storages: geometry, lazy content, pending writes, and the time of computation."""
