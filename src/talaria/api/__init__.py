"""The HTTP API: programs and front ends that talk to the agent."""
