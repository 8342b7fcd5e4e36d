"""Pictures and pages, from plain arrays."""
