"""Generated input, checked against a naive model that is obviously right."""
