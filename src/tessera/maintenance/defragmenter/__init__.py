"""`tessera defrag run`: plans and makes moves on a schedule, for pods and gangs that wait."""
