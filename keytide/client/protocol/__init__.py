"""What the clients do, without any I/O: from keyword arguments to requests, from answers to rows and errors,
and the steps between (after h11). Pure.

Written once for both clients; `keytide.client.transports` carries it out.
"""
