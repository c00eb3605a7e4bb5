"""From a filter request to what is placed: pods, their claims, candidates, and what policies look ahead to."""
