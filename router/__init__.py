"""The router: from secondary keys to one segment per slice.

What lives here: a pure core only. It finds the slice of each entry (hash, or splits) and who hears of which
documents (`recipients`), groups puts by slice, and gives every slice the full covering range of offsets, even
when the batch brings that slice nothing.

Who may import it: `projector` and `streaming` only. What it may import: `keytide`.

Not to be touched lightly: the hash that picks a slice. Entries already stored lie where the old one put them.
"""
