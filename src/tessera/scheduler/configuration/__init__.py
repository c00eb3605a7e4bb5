"""From flags, environment and files to one `Settings`."""
