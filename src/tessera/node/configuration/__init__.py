"""Flags, environment, device-config.yaml and config.json of the agent, merged into `AgentSettings`."""
