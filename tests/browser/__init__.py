"""The web page, driven in a real browser."""
