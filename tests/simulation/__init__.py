"""The pure cores in one scheduled world, with faults injected between any two events."""
