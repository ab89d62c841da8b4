"""The reference GRPO trainer and its tasks."""
