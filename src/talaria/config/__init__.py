"""How the outside shapes us: the home folder, config.yaml, secrets, and which model that amounts to."""
