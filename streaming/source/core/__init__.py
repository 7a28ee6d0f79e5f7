"""What users may say of an index as a DataFrame: options, and the condition `where`. Pure.

Called by `streaming.source` alone.
"""
