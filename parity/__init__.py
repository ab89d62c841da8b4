"""Proves that a change to how an RL trainer requests rollouts leaves training the same, or shows where it does not."""

__version__ = "0.1.0"
