"""From flags, environment and files to the settings of one agent."""
