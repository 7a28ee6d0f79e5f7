"""The system dictionary as typed records, what of a keyspace's past still holds, and in which slice of its
index an entry lies. Pure.

Written by the coordinator's leader, read by every process. Records are kept for ever: a new field goes to the
end of its struct, with a default.
"""
