#!/bin/sh
# Every table of docs/performance.md, into a results folder. About forty minutes on 2 quiet cores with 24 GiB of
# memory; before that, once, the making of the files (19 GB).
#
#   scripts/paired_all.sh MODELS RESULTS
#
# MODELS holds SmolLM2-135M-Instruct.Q4_1.gguf and takes the files made from it and the synthetic ones.
# Needs: pip install llama-cpp-python; pip install --no-deps ik-llama-cpp-python kt-kernel
set -e
models=$1 results=$2 here=$(dirname "$0")
smol=$models/SmolLM2-135M-Instruct lite=$models/deepseek-v2-lite.Q4_K_M.gguf
four=$models/deepseek-v2-4-layers.Q4_K_M.gguf

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
[ -e "$four" ] || python -m kbench synth deepseek-v2-chat --layers 4 -o "$four"

run paired_engines.py "$smol.Q4_1.gguf" "$smol.Q4_0.gguf" "$smol.Q4_K_M.gguf" "$smol.Q8_0.gguf" \
    --against llama.cpp --against ik_llama.cpp --pairs 10
# Two engines at once need 22 GiB: nothing else that is large may run.
for large in "$lite" "$four"; do
    for peer in llama.cpp ik_llama.cpp; do
        run paired_engines.py "$large" --against "$peer" --pairs 10 --prompt 256 --generate 16 --at-once yes
    done
    run paired_roof.py "$large" --pairs 10 --generate 8
done
run paired_roof.py "$smol.Q4_1.gguf" "$smol.Q4_0.gguf" "$smol.Q4_K_M.gguf" "$smol.Q8_0.gguf" --pairs 10
run paired_roof.py --pairs 10
run paired_moe.py --tokens 1 --experts 160 --pairs 10 --peer-threads 2
run paired_moe.py --tokens 512 --experts 160 --pairs 10 --peer-threads 2
run paired_moe.py --tokens 512 --experts 160 --pairs 10 --peer-threads 2 --block activation_planes=1
run paired_torch.py --pairs 10
run paired_torch.py --pairs 10 --case 5120,16384,512
python "$here/paired_table.py" "$results"
