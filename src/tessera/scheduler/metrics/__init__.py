"""Metrics: the service's own, and HAMi's series about every card."""
