"""L3: whether the curves of whole runs agree; the unit is the run, never the step.

Evidence inside a run is in `sampling`.
"""
