"""Seeded fuzzers of what the parts of Keytide say to each other, for as long as you like:
`python -m tests.fuzz internal --minutes 60`. The unit tests run them for a moment."""
