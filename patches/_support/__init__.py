"""Share code between patches."""
