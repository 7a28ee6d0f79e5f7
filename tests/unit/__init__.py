"""Single functions and classes, in memory, in milliseconds."""
