"""The reference GRPO trainer: its policy, tasks, rollouts and steps.

No comparison of arms; pairs of runs are made by `parity.runner`.
"""
