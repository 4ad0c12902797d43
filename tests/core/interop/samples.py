"""Sample documents, shortened from the guides of other systems."""

from __future__ import annotations

CLOUDML_CUSTOM = """\
trainingInput:
  scaleTier: CUSTOM
  masterType: complex_model_m
  workerType: complex_model_m
  workerCount: 9
  parameterServerType: large_model
  parameterServerCount: 3
"""
CLOUDML_GPUS = """\
# gcloud ai-platform jobs submit training census --config config.yaml
trainingInput:
  scaleTier: CUSTOM
  masterType: n1-highcpu-16
  masterConfig:
    acceleratorConfig: {count: 2, type: NVIDIA_TESLA_V100}
  workerType: n1-highcpu-16
  workerConfig:
    acceleratorConfig: {count: 2, type: NVIDIA_TESLA_V100}
  workerCount: "4"
  parameterServerType: n1-highmem-8
  parameterServerCount: 2
  evaluatorType: standard_p100
  evaluatorCount: 1
  pythonModule: trainer.task
  packageUris: [gs://bucket/trainer-0.1.tar.gz]
  args: [--train-steps, 1000]
  region: us-central1
  runtimeVersion: "1.15"
  useChiefInTfConfig: true
"""
VERTEX = """\
displayName: mnist
jobSpec:
  workerPoolSpecs:
    - machineSpec:
        machineType: n1-highmem-8
        acceleratorType: NVIDIA_TESLA_V100
        acceleratorCount: 2
      replicaCount: 1
      diskSpec: {bootDiskType: pd-ssd, bootDiskSizeGb: 100}
      containerSpec: &container
        imageUri: gcr.io/project/mnist
        command: [python, task.py]
        args: [--epochs, "2"]
        env: [{name: MODE, value: fast}]
    - machineSpec:
        machineType: n1-highmem-8
        acceleratorType: NVIDIA_TESLA_V100
        acceleratorCount: 2
      replicaCount: 3
      containerSpec: *container
    - {}
    - machineSpec: {machineType: n1-standard-4}
      replicaCount: 1
      containerSpec: *container
"""
VERTEX_JSON = """\
{
\t"worker_pool_specs": [
\t\t{"machine_spec": {"machine_type": "n1-standard-8", "accelerator_type": "NVIDIA_TESLA_T4", "accelerator_count": 1},
\t\t "replica_count": "1",
\t\t "python_package_spec": {"executor_image_uri": "us-docker.pkg.dev/vertex-ai/training/pytorch-gpu.1-13:latest",
\t\t   "package_uris": ["gs://bucket/trainer.tar.gz"], "python_module": "trainer.task", "args": ["--lr", "0.1"]}}
\t]
}
"""
VERTEX_FLAGS = """\
gcloud ai custom-jobs create \\
  --region=us-central1 \\
  --display-name=reduction \\
  --worker-pool-spec=machine-type=n1-highmem-96,replica-count=1,accelerator-type=NVIDIA_TESLA_V100,accelerator-count=8,container-image-uri=IMAGE \\
  --worker-pool-spec=machine-type=n1-highmem-96,replica-count=4,accelerator-type=NVIDIA_TESLA_V100,accelerator-count=8,container-image-uri=IMAGE \\
  --worker-pool-spec=machine-type=n1-highcpu-16,replica-count=16,container-image-uri=us-docker.pkg.dev/vertex-ai-restricted/training/reductionserver:latest
"""  # noqa: E501  # Users paste such long lines.
VERTEX_PYTHON = """\
from google.cloud import aiplatform

PROJECT = "demo"
MACHINE = {
    "machine_type": "n1-standard-8",
    "accelerator_type": aiplatform.gapic.AcceleratorType.NVIDIA_TESLA_T4,
    "accelerator_count": 2,
}


def train(container_uri, args=None):
    worker_pool_specs = [
        {
            "machine_spec": MACHINE,
            "replica_count": 1,
            "container_spec": {"image_uri": f"gcr.io/{PROJECT}/mnist", "command": ["python", "task.py"], "args": []},
        },
        {
            "machine_spec": MACHINE,  # the same
            "replica_count": 3,
            "disk_spec": {"boot_disk_type": "pd-ssd", "boot_disk_size_gb": DISK},
            "container_spec": dict(image_uri=container_uri, command=["python", "task.py"]),
        },
    ]
    job = aiplatform.CustomJob(display_name="mnist", worker_pool_specs=worker_pool_specs)
    job.run(sync=True)
"""
CLUSTER_SPEC = """\
{
   "cluster":{
      "workerpool0":["cmle-training-workerpool0-ab-0:2222"],
      "workerpool1":["cmle-training-workerpool1-ab-0:2222", "cmle-training-workerpool1-ab-1:2222"],
      "workerpool2":["cmle-training-workerpool2-ab-0:2222"],
      "workerpool3":["cmle-training-workerpool3-ab-0:2222"]
   },
   "environment":"cloud",
   "task":{"type":"workerpool1", "index":1, "trial":"3"}
}
"""
TF_CONFIG = """\
TF_CONFIG='{
  "cluster": {
    "chief": ["host0:2222"],
    "worker": ["host1:2222", "host2:2222", "host3:2222"],
    "ps": ["host4:2222", "host5:2222"]
  },
  "task": {"type": "worker", "index": 1}
}'
"""
TF_DENSE = """\
cluster = tf.train.ClusterSpec({"worker": ["worker0.example.com:2222",
                                           "worker1.example.com:2222",
                                           "worker2.example.com:2222"],
                                "ps": ["ps0.example.com:2222",
                                       "ps1.example.com:2222"]})
server = tf.train.Server(cluster, job_name="worker", task_index=0)
"""
TF_SPARSE = """\
{"worker": {1: "worker1.example.com:2222"}, "ps": ["ps0.example.com:2222", "ps1.example.com:2222"]}
"""
TF_COMMANDS = """\
# On ps0.example.com:
$ CUDA_VISIBLE_DEVICES= python trainer.py \\
     --ps_hosts=ps0.example.com:2222,ps1.example.com:2222 \\
     --worker_hosts=worker0.example.com:2222,worker1.example.com:2222 \\
     --job_name=ps --task_index=0 --batch_size 32
# On ps1.example.com:
$ CUDA_VISIBLE_DEVICES= python trainer.py \\
     --ps_hosts=ps0.example.com:2222,ps1.example.com:2222 \\
     --worker_hosts=worker0.example.com:2222,worker1.example.com:2222 \\
     --job_name=ps --task_index=1 --batch_size 32
# On worker0.example.com:
$ CUDA_VISIBLE_DEVICES=0,1 python trainer.py \\
     --ps_hosts=ps0.example.com:2222,ps1.example.com:2222 \\
     --worker_hosts=worker0.example.com:2222,worker1.example.com:2222 \\
     --job_name=worker --task_index=0 --batch_size 32
# On worker1.example.com:
$ CUDA_VISIBLE_DEVICES=0,1 python trainer.py \\
     --ps_hosts=ps0.example.com:2222,ps1.example.com:2222 \\
     --worker_hosts=worker0.example.com:2222,worker1.example.com:2222 \\
     --job_name=worker --task_index=1 --batch_size 32
"""
TF_OVER_SSH = """\
PORT=2222  # ps0's and the workers'
ssh ps0.example.com "cd /src && python trainer.py --ps_hosts=ps0.example.com:2222 \\
  --worker_hosts=10.0.0.1:2222,10.0.0.2:2222 --job_name=ps --task_index=0" &
nohup ssh -n -p 22 -i ~/id lee@10.0.0.1 CUDA_VISIBLE_DEVICES=0,1 python trainer.py --ps_hosts=ps0.example.com:2222 \\
  --worker_hosts=10.0.0.1:2222,10.0.0.2:2222 --job_name=worker --task_index=0 > w0.log 2>&1 &
ssh gpu-b '
  cd /src  # it'"'"'s there
  CUDA_VISIBLE_DEVICES=0,1 python trainer.py --ps_hosts=ps0.example.com:2222 \\
    --worker_hosts=10.0.0.1:2222,10.0.0.2:2222 --job_name=worker --task_index=1
'
"""
SINGA = """\
name: "cifar10-convnet"
train_steps: 1000
disp_freq: 30
train_one_batch { alg: kBP }
updater {
  type: kSGD
  learning_rate { type: kFixedStep fixedstep_conf: { step: 0 step: 60000 step_lr: 0.001 } }  # two steps
}
neuralnet {
  layer { name: "data" type: kRecordInput store_conf { backend: "kvfile" path: "examples/{cifar10}/train.bin" } }
}
cluster {
  nworker_groups: 2
  nserver_groups: 1
  nworkers_per_group: 2
  nservers_per_group: 2
  server_worker_separate: true
  workspace: "examples/cifar10"
}
"""
WHOLE = """\
version: 1
name: tf job
pools:
  - {name: workers, role: worker, replicas: 3, gpus: 2, gpu_model: A100, cpus: 4}
  - {name: servers, role: ps, replicas: 2, memory_gb: 16}
  - {name: eval, role: evaluator, replicas: 1}
program:
  launcher: command
  command: [python, "it's.py", "--ps={ps_hosts}", "--workers={worker_hosts}", "--job={job_name}", "--task={task_index}"]
  env: {MODE: "a b"}
  secrets: [TOKEN]
  setup: ["export READY=1"]
"""
"""A topology without a chief pool. Its command contains placeholders, and a character that shells must escape."""
ACCELERATE = """\
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
downcast_bf16: 'no'
fsdp_config:
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_offload_params: false
  fsdp_transformer_layer_cls_to_wrap: Block
machine_rank: 1
main_process_ip: 192.168.0.7
main_process_port: 29500
main_training_function: main
mixed_precision: bf16
num_machines: 2
num_processes: 16
rdzv_backend: static
same_network: true
tpu_env: []
use_cpu: false
"""
HOSTFILE = """\
# two machines with 8 GPUs each, and one with 4

gpu-a slots=8
gpu-b slots=8
gpu-c   slots=4 max_slots=8
"""
