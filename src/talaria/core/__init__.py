"""The vocabulary: pure data, no I/O, imports nothing of ours."""
