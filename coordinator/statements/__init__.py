"""What users order: CREATE, DROP, BUILD and the steering of builds, checked before anything follows from it.
Pure.

Called by `coordinator.leader` and `coordinator.http`.
"""
