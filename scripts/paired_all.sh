#!/bin/sh
# Every table of docs/performance.md, into a results folder. About half an hour on 2 quiet cores with 24 GiB of
# memory; before that, once, the making of the files (11 GB).
#
#   scripts/paired_all.sh MODELS RESULTS
#
# MODELS holds SmolLM2-135M-Instruct.Q4_1.gguf and takes the files made from it and the synthetic ones.
# Needs: pip install llama-cpp-python; pip install --no-deps ik-llama-cpp-python kt-kernel
set -e
models=$1 results=$2 here=$(dirname "$0")
smol=$models/SmolLM2-135M-Instruct lite=$models/deepseek-v2-lite.Q4_K_M.gguf

run() {
    begin=$(date +%s)
    echo "== $*"
    python "$here/$@" --store "$results"
    echo "== $(($(date +%s) - begin)) seconds"
}

for quant in Q4_0 Q4_K_M Q8_0; do
    [ -e "$smol.$quant.gguf" ] || python "$here/requantize.py" "$smol.Q4_1.gguf" "$quant" -o "$models"
done
[ -e "$lite" ] || python -m kbench synth deepseek-v2-lite-chat -o "$lite"

run paired_engines.py "$smol.Q4_1.gguf" "$smol.Q4_0.gguf" "$smol.Q4_K_M.gguf" "$smol.Q8_0.gguf" \
    --against llama.cpp --against ik_llama.cpp --pairs 10
run paired_engines.py "$lite" --against ik_llama.cpp --against llama.cpp --pairs 4 \
    --visit 4 --prompt 256 --generate 16 --at-once no
run paired_roof.py "$smol.Q4_1.gguf" "$smol.Q4_0.gguf" "$smol.Q8_0.gguf" --pairs 8
run paired_roof.py "$lite" --pairs 8 --generate 8
run paired_moe.py --tokens 1 --experts 160 --pairs 8 --peer-threads 2
run paired_moe.py --tokens 512 --experts 64 --pairs 8 --peer-threads 2
run paired_moe.py --tokens 512 --experts 64 --pairs 8 --peer-threads 2 --block activation_planes=1
run paired_torch.py --pairs 10
run paired_torch.py --pairs 6 --case 5120,16384,512
python "$here/paired_table.py" "$results"
