"""What other programs wrote, read as records: rollout dumps and training curves.

Nothing here judges, and nothing here is written.
"""
