"""What both ends of an HTTP request need: certificates, the header with a token, JSON as people type it.

Imported by the clients, the command and the servers; imports nothing of them.
"""
