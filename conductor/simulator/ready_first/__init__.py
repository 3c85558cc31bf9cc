"""Ready-first execution."""
