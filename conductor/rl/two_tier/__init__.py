"""The learned lending tier."""
