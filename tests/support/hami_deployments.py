"""Arguments of the schedulers that HAMi's charts start, and the file of one of them."""

from __future__ import annotations

COMMON = [
    "--http_bind=0.0.0.0:443",
    "--cert_file=/tls/tls.crt",
    "--key_file=/tls/tls.key",
    "--scheduler-name=hami-scheduler",
    "--metrics-bind-address=:9395",
    "--node-scheduler-policy=binpack",
    "--gpu-scheduler-policy=spread",
]

V2_4_0 = [
    "--resource-name=nvidia.com/vgpu",
    "--resource-mem=nvidia.com/gpumem",
    "--resource-cores=nvidia.com/gpucores",
    "--resource-mem-percentage=nvidia.com/gpumem-percentage",
    "--resource-priority=nvidia.com/priority",
    *COMMON,
    "--default-mem=5000",
    "--default-gpu=2",
    "--default-cores=10",
    "--iluvatar-memory=iluvatar.ai/vcuda-memory",
    "--iluvatar-cores=iluvatar.ai/vcuda-core",
    "--cambricon-mlu-name=cambricon.com/mlunum",
    "--cambricon-mlu-memory=cambricon.com/mlu.smlu.vmemory",
    "--cambricon-mlu-cores=cambricon.com/mlu.smlu.vcore",
    "--ascend-name=huawei.com/Ascend910",
    "--ascend-memory=huawei.com/Ascend910-memory",
    "--ascend310p-name=huawei.com/Ascend310P",
    "--ascend310p-memory=huawei.com/Ascend310P-memory",
    "--overwrite-env=true",
    "--debug",
    "-v=4",
]

V2_4_1 = [
    *COMMON,
    "--device-config-file=/device-config.yaml",
    "--default-mem=0",
    "--default-gpu=1",
    "--default-cores=0",
    "--dcu-name=hygon.com/dcu",
    "--dcu-memory=hygon.com/dcumem",
    "--dcu-cores=hygon.com/dcucores",
    "--iluvatar-name=iluvatar.ai/vgpu",
    "--iluvatar-memory=iluvatar.ai/vcuda-memory",
    "--iluvatar-cores=iluvatar.ai/vcuda-core",
    "--mthreads-name=mthreads.com/vgpu",
    "--mthreads-memory=mthreads.com/sgpu-memory",
    "--mthreads-cores=mthreads.com/sgpu-core",
    "--metax-name=metax-tech.com/gpu",
    "--enable-ascend=true",
    "--debug",
    "-v=4",
]

V2_4_1_FILE = """
nvidia:
  resourceCountName: nvidia.com/gpu
  resourceMemoryName: nvidia.com/gpumem
  resourceMemoryPercentageName: nvidia.com/gpumem-percentage
  resourceCoreName: nvidia.com/gpucores
  resourcePriorityName: nvidia.com/priority
  overwriteEnv: false
  defaultMemory: 3000
  defaultCores: 0
  defaultGPUNum: 1
cambricon:
  resourceCountName: cambricon.com/vmlu
  resourceMemoryName: cambricon.com/mlu.smlu.vmemory
  resourceCoreName: cambricon.com/mlu.smlu.vcore
hygon:
  resourceCountName: hygon.com/dcunum
  resourceMemoryName: hygon.com/dcumem
  resourceCoreName: hygon.com/dcucores
metax:
  resourceCountName: metax-tech.com/gpu
mthreads:
  resourceCountName: mthreads.com/vgpu
  resourceMemoryName: mthreads.com/sgpu-memory
  resourceCoreName: mthreads.com/sgpu-core
iluvatar:
  resourceCountName: iluvatar.ai/vgpu
  resourceMemoryName: iluvatar.ai/vcuda-memory
  resourceCoreName: iluvatar.ai/vcuda-core
vnpus:
- chipName: 910B3
  commonWord: Ascend910B
  resourceName: huawei.com/Ascend910B
  resourceMemoryName: huawei.com/Ascend910B-memory
  memoryAllocatable: 65536
  memoryCapacity: 65536
  aiCore: 20
  aiCPU: 7
  templates:
  - {name: vir05_1c_16g, memory: 16384, aiCore: 5, aiCPU: 1}
"""

V2_10 = [
    *COMMON,
    "--force-overwrite-default-scheduler=true",
    "--device-config-file=/device-config.yaml",
    "--leader-elect=true",
    "--leader-elect-resource-name=hami-scheduler",
    "--leader-elect-resource-namespace=kube-system",
    "--enable-ascend=true",
    "--enable-iluvatar=true",
    "--node-label-selector=gpu=on,zone=a",
    "--legacy-metrics=true",
    "--debug",
    "-v=4",
]
