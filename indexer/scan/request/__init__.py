"""What readers may ask, decoded and checked in one go. Pure.

First on the way of a scan: whatever comes from outside is a request from here, or a problem document. Called
by `indexer.scan.http`; what it gives is imported by `indexer.scan.gather`, `indexer.scan.plan` and others.
"""
