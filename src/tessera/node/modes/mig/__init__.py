"""The sharing mode `mig`: the agent creates and destroys GPU instances as pods come and go."""
