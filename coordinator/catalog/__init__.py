"""The system dictionary as the leader means it to be, and which node holds which slice. Pure.

Every change of the dictionary goes through `dictionary`, which keeps what is still to be written.
"""
