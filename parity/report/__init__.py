"""The report as data (`document`), and beside it what renders it.

Nothing here judges: findings and verdicts come in.
"""
