"""What operators ask about a cluster: why a pod waits, which pods hold a card, what would fit, what is wrong.

The scheduler's own engine answers, on the objects of a live cluster, a snapshot or a description. Nothing here changes
a cluster, and no placement rule is written a second time.
"""
