"""Our times beside their floors. A floor is a small program that does the same work with nothing around it.

`python -m benchmarks [--quick] [NAME ...]`; floor and ours run in turn, so that a busy machine slows both.
"""
