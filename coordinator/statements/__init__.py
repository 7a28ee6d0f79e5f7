"""What users order: CREATE, DROP, BUILD and the steering of builds, checked before anything follows from it.
Pure but for looking at links of a path.

Called by `coordinator.leader` and the API.
"""
