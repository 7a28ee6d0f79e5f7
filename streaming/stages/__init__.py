"""What runs in Spark's Python workers: reading a share of the source, projecting, sorting, sending.

Functions over Arrow batches. Whatever is imported here is imported by every worker.
"""
