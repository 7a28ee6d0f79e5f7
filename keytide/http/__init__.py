"""What both ends of an HTTP request need: certificates, the header with a token, JSON as people type it; and
how the parts of a cluster ask its nodes (`node_protocol`, pure, with the credential that nodes look at;
`nodes` from an event loop, `blocking_nodes` from threads).

Imported by `keytide.client`, `keytide.cli`, `keytide.serving` and the servers, and by whoever asks a node, as
`indexer.scan.gather` and `streaming.slices`; imports nothing of them.
"""
