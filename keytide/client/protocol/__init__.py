"""What the clients do, without any I/O: from keyword arguments to requests, from answers to rows and errors,
and the steps between (after h11). Pure.

Written once for both clients. Called by `keytide.client`, whose `transports` carry it out; the words of its
answers are imported by `keytide.cli` and `streaming.source`.
"""
