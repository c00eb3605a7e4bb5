"""`tessera demo`: the whole product on one machine, without a cluster and without a GPU.

The apiserver, kube-scheduler's loop, kubelets and cards are simulated (`sandbox`, `host.simulated`); webhook,
extender, ledger, registration and Allocate are real. Nothing needs root, and nothing outlives the process.
"""
