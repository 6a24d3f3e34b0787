"""verl's own command from end to end on CPUs, Ray, TransferQueue and agent loops included: ``ray_run.py LOG [MODE]``.

MODE is ``sync``, ``colocate_async`` or ``separate_async``; more options of verl may follow. Two workers train, two
sample, a third apart in the last mode; after three steps and a checkpoint the run is killed, and resumed from there
for two more, in about five minutes. Too slow and too dependent on the machine to run with every change.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from environment import FIXED, free_port

HERE = Path(__file__).parent
PATIENCE = {
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_metrics_collection": "0",
    "RAY_worker_register_timeout_seconds": "900",
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_health_check_initial_delay_ms": "600000",
    "RAY_health_check_timeout_ms": "300000",
    "RAY_health_check_period_ms": "60000",
    "RAY_agent_register_timeout_ms": "600000",
    "RAY_DEDUP_LOGS": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",  # a cluster of this machine alone
}
"""Ray gives up on processes that take half a minute to start, which on two busy cores they do."""
PORTS = ("dashboard-agent-grpc-port", "dashboard-agent-listen-port", "metrics-export-port", "runtime-env-agent-port")
FILES = ("metrics_agent_port", "dashboard_agent_listen_port", "metrics_export_port", "runtime_env_agent_port")


STEPS, SAVED = 5, 3
"""Steps of a run, and the one after which it is saved and killed."""
MODES = {
    "sync": ["trainer.v1.trainer_mode=dynamic_pruning"],
    "colocate_async": ["trainer.v1.trainer_mode=dynamic_pruning_colocate_async"],
    "separate_async": [
        "trainer.v1.trainer_mode=dynamic_pruning_separate_async",
        "trainer.v1.separate_async.parameter_sync_step=2",
        *("actor_rollout_ref.rollout.nnodes=1", "actor_rollout_ref.rollout.n_gpus_per_node=1"),
        "actor_rollout_ref.rollout.checkpoint_engine.backend=cpu_files",
        "actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module=cpu_rollout",
    ],
}


def settings(toy: Path, steps: int, mode: str = "sync") -> list[str]:
    """verl's command line."""
    from in_process_settings import BASE

    return [
        *(option for option in BASE if "rollout.name" not in option and "resume_mode" not in option),
        *(f"data.train_files={toy}/train.parquet", f"data.val_files={toy}/val.parquet"),
        f"actor_rollout_ref.model.path={toy}/model",
        *("data.train_batch_size=8", "actor_rollout_ref.actor.ppo_mini_batch_size=4", "data.train_max_samples=16"),
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=256",
        *("actor_rollout_ref.rollout.name=plain_cpu", "actor_rollout_ref.rollout.n=4"),
        *("actor_rollout_ref.rollout.agent.num_workers=1", "actor_rollout_ref.rollout.calculate_log_probs=True"),
        *("reward.num_workers=1", f"reward.custom_reward_function.path={HERE}/toy.py"),
        "reward.custom_reward_function.name=compute_score",
        "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
        *("trainer.nnodes=1", "trainer.n_gpus_per_node=2", "trainer.logger=[console]", "trainer.test_freq=-1"),
        *("trainer.val_before_train=False", f"trainer.save_freq={SAVED}"),
        *("trainer.total_epochs=9", f"trainer.total_training_steps={steps}"),
        f"trainer.default_local_dir={toy}/checkpoints",
        *MODES[mode],
        f"+actor_rollout_ref.rollout.checkpoint_engine.engine_kwargs.cpu_files.folder={toy}/weights",
        "+trainer.v1.sampler.sampler_kwargs.pruning.completion_prune_rate=0.5",
        "+trainer.v1.sampler.sampler_kwargs.pruning.prompt_prune_rate=0.3",
    ]


def write_ports(folder: Path, ports: dict[str, int]) -> None:
    """Ray's agent writes its ports when it is up, and its raylet does not wait: write them first."""
    for _ in range(3000):
        for found in (folder / "session_latest").glob("gcs_server_port_*"):
            node = found.name.removeprefix("gcs_server_port_")
            for name, port in zip(FILES, ports.values(), strict=True):
                file = found.parent / f"{name}_{node}"
                if not file.exists():
                    file.write_text(str(port))
            return
        time.sleep(0.1)


SHOWN = ("training/global_step", "actor/pg_loss", "actor/grad_norm", "candidates/reward", "critic/score/mean")
SHOWN += ("prune/prompts_kept_share", "prune/kept_share", "prune/largest_weight", "rows/sent", "rows/fillers")
SHOWN += ("prune/token_kept_share", "rows/tokens_share", "prune/other_terms")
SHOWN += ("rollout/in_flight", "training/rollout_probs_diff_max", "training/off_policy/trajectory_spans/max")
SHOWN += ("training/off_policy/trajectory_staleness_worst/max",)
SAID = ("Restored ", "Re-issued ", "Added ")
"""verl's lines about prompts in flight."""


def told(log: str) -> list[str]:
    """Our lines of a run, and some metrics of each step."""
    lines = []
    for line in log.splitlines():
        if "dppo | " in line:
            lines.append(line[line.index("dppo | ") :])
        elif "Resuming from " in line:
            lines.append("verl | resuming from global_step_" + line.split("global_step_")[1].split(",")[0])
        elif any(f":{said}" in line for said in SAID):
            lines.append("verl | " + line.split(":", 4)[-1])
        elif "step:" in line and " - " in line:  # NAME:NUMBER or NAME:np.float64(NUMBER)
            metrics = dict(re.findall(r"([\w/]+):(?:np\.\w+\()?([0-9.eE+-]+)", line))
            numbers = {name: float(metrics[name]) for name in SHOWN if name in metrics}
            lines.append("verl | " + ", ".join(f"{name} {number:.4g}" for name, number in numbers.items()))
    return lines


def until_killed(train: list[str], env: dict[str, str], log: Path) -> int:
    """Run a command until it has logged the step that was saved, and kill it in the next: 0 where it came so far."""
    with log.open("w") as out:
        run = subprocess.Popen(train, env=env, cwd=HERE, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
    while run.poll() is None:
        time.sleep(0.2)
        if f"training/global_step:{SAVED} " in log.read_text(errors="replace"):
            os.killpg(run.pid, signal.SIGKILL)
            time.sleep(30)  # until Ray has ended what belonged to it
            return 0
    return run.returncode or 1


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that Ray is stopped
    log, mode = Path(sys.argv[1]).absolute(), (*sys.argv[2:], "sync")[0]
    folder = Path(tempfile.mkdtemp(prefix="ray"))
    subprocess.run([sys.executable, "toy.py", str(folder)], cwd=HERE, check=True)
    env = os.environ | FIXED | PATIENCE | {"VERL_USE_EXTERNAL_MODULES": "platform_cpu,cpu_rollout"}
    env |= {"PYTHONPATH": f"{HERE.parent}{os.pathsep}{HERE}", "HYDRA_FULL_ERROR": "1"}
    env |= {} if mode == "sync" else {"CPU_ROLLOUT_SLOW": "4"}
    for name in ("LOCAL_RANK", "MASTER_ADDR"):
        env.pop(name)
    ports, port = {name: free_port() for name in PORTS}, free_port()
    command = [f"{Path(sys.executable).parent}/ray", "start", "--head", "--block", "--node-ip-address=127.0.0.1"]
    command += [f"--port={port}", "--num-cpus=64", f"--num-gpus={3 if mode == 'separate_async' else 2}"]
    command += ["--object-store-memory=300000000", "--include-dashboard=false", "--disable-usage-stats"]
    command += [f"--temp-dir={folder}/ray"]
    command += [f"--{name}={number}" for name, number in ports.items()]
    head = subprocess.Popen(command, env=env, start_new_session=True, stdout=subprocess.DEVNULL)
    try:
        write_ports(folder / "ray", ports)
        time.sleep(20)
        train = [sys.executable, "-m", "verl.trainer.main_ppo", *settings(folder, STEPS, mode), *sys.argv[3:]]
        train += [f"+ray_kwargs.ray_init.address=127.0.0.1:{port}", f"hydra.run.dir={folder}/hydra"]
        if code := until_killed(train, env, log):
            return code
        with log.open("a") as out:
            out.write("\ndppo | killed, and resumed\n")
            out.flush()
            code = subprocess.run(train, env=env, cwd=HERE, stdout=out, stderr=subprocess.STDOUT).returncode
        print(*told(log.read_text(errors="replace")), sep="\n")
        return code
    finally:
        os.killpg(head.pid, signal.SIGTERM)
        try:
            head.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(head.pid, signal.SIGKILL)


if __name__ == "__main__":
    raise SystemExit(main())
