"""What all pure parts of the coordinator speak: events in, instructions out, the state of sources, who is
alive, and the limits that they obey. Pure.

Imported by every room of the package; imports none of them.
"""
