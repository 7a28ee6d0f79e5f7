"""What the HTTP servers of coordinator, nodes and gateways share: who may ask, how much of a request is
taken, how long anybody is waited for, what an error looks like.

Every request passes `gate` before an application reads any of it. Imported by `coordinator.http`,
`indexer.serve` and `indexer.scan.http`.
"""
