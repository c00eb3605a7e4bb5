"""MIG instances that an administrator made, handed out whole as resources of their own (`--mig-strategy`)."""
