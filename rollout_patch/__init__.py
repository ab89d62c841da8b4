"""Native group sampling for RL trainers: one `/generate` request a group instead of one a sample."""
