"""The whole product on one machine without a cluster and without a GPU: `tessera demo`.

The apiserver, kube-scheduler's loop, kubelets and cards are simulated (`sandbox`, `node.inventory.simulated`); webhook,
extender, ledger, registration and Allocate are the real ones. Nothing outlives the process, nothing needs root.
"""
