"""The loop: asks the model, runs its calls, records every step before acting on it. Speaks to ports only."""
