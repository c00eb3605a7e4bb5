"""Whether cards may be used: what the driver reports, and how a card comes back."""
