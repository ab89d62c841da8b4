"""L1: whether both arms draw groups from one distribution, at fixed weights and inside a run.

Tests of whole runs are in `training`.
"""
