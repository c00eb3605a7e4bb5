"""ResourceClaims in the scheduler: what the API shows, what pods ask with them, and the writes that allocate them."""
