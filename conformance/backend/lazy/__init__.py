"""What a torch storage holds: geometry, lazy content, pending writes, and when it is computed."""
