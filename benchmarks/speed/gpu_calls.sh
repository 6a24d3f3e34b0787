#!/usr/bin/env bash
# Two calls that time whole steps on a GPU machine without a network, which has Python 3.12, torch and peft, but no TRL.
#
#   bash benchmarks/speed/gpu_calls.sh wheels       # before, with a network: TRL, its needs and others by name, into .whl
#   bash benchmarks/speed/gpu_calls.sh 1            # Qwen3-0.6B, with and without a KL term: 6 minutes at most
#   bash benchmarks/speed/gpu_calls.sh 2            # 1.7B, 4B with LoRA, kernels, a proof: 5.5 minutes at most
#
# JSON files and a log go to $OUT, benchmarks/results/gpu by default. With --dry-run as a second argument the same commands
# run a tiny model on a CPU, and nothing is installed. A command that fails does not stop those after it.
set -o pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit
call=${1:-} dry=()
[ "${2:-}" = --dry-run ] && dry=(--dry-run)
python=${PYTHON:-python3} OUT=${OUT:-benchmarks/results/gpu} failed=0
wheels=(trl==1.16.0 transformers==5.23.0 datasets==5.2.0 dill==0.4.1 multiprocess==0.70.19)

install() { # by call 1, if the machine was kept
    [ -e "$HOME/site/.installed" ] ||
        { python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target "$HOME/site" \
            .whl/*.whl && touch "$HOME/site/.installed"; }
}

prepare() { # SECONDS: what all commands of this call may take together
    limit=$1
    export PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
    ((${#dry[@]})) && limit=3600 && return
    install || exit
    export PYTHONPATH=$HOME/site
    echo "installed after $SECONDS s"
}

run() { # SECONDS COMMAND ...: within these seconds, and those left of the call
    local most=$1 left=$((limit - SECONDS))
    shift
    ((left > most && ! ${#dry[@]})) && left=$most
    if ((left < 10)); then
        echo "left out, no time: $*"
        failed=1
        return
    fi
    echo "== after $SECONDS s, at most $left s: $*"
    timeout "$left" "$@" || { failed=$? && echo "exit code $failed: $*"; }
}

step() { # SECONDS NAME OPTION ...
    local most=$1 name=$2
    shift 2
    run "$most" "$python" -m benchmarks.speed.gpu_step "$@" "${dry[@]}" --output "$OUT/gpu_step_$name.json"
}

first() {
    prepare 350
    ((${#dry[@]})) || nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
    run 20 "$python" -m pip check # what packages there ask of each other
    run 60 "$python" -c "import datasets, peft, torch, transformers, trl.trainer.grpo_trainer as grpo, dppo.trl; print(grpo, *(each.__version__ for each in (datasets, peft, torch, transformers)))"
    step 90 quick --quick --betas 0 --prompts 4 --sizes 8
    step 350 0.6B --model 0.6B --prompts 16 --betas 0 0.04 --sizes 16 8 32
    exit "$failed"
}

second() {
    prepare 320
    step 170 1.7B --model 1.7B --dtype bfloat16 --prompts 8 --betas 0 --sizes 16 8 32
    step 150 4B_lora --model 4B --dtype bfloat16 --lora 16 --prompts 4 --betas 0 --sizes 16 8 32
    ((${#dry[@]})) && exit "$failed"
    run 60 "$python" -m benchmarks.speed.forward --device cuda --quick --output "$OUT/gpu_kernels.json"
    run 60 "$python" -m dppo.lab.cli.main verify examples/embedded.yaml --use_cpu false
    exit "$failed"
}

case $call in
wheels)
    "$python" -m pip download -q --no-deps --only-binary=:all: --python-version 3.12 \
        --platform manylinux2014_x86_64 --platform manylinux_2_28_x86_64 -d .whl "${wheels[@]}" "${@:2}"
    ;;
install) install ;; # the wheels, for the commands of another script
1 | 2)
    mkdir -p "$OUT" || exit
    if [ "$call" = 1 ]; then first; else second; fi 2>&1 | tee "$OUT/call_$call.txt"
    ;;
*)
    sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
    exit 2
    ;;
esac
