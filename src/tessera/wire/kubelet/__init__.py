"""What kubelet and its plugins say to each other: the messages, and the names of the calls.

The `*_pb2` modules are made from the `.proto` files by `make proto`, never by hand.
"""
