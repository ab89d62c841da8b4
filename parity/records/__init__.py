"""What a run leaves: samples, exchanges, the experiment asked for, its files and where they came from.

No engine, no statistics and no readers of other programs' files; `store` alone writes to the disk, and `budgets` bounds
how much of what others wrote is read.
"""
