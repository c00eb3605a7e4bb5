"""What operators ask about a cluster: why a pod waits, who holds which card, what would fit, what is wrong.

Everything is decided by the scheduler's own engine on the objects of a cluster, a snapshot or a description; nothing
here changes a cluster, and no rule of placement is written down a second time.
"""
