"""Configuration: the home folder, config.yaml, secrets, and the model that they select."""
