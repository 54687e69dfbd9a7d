#!/bin/sh
# Every table of docs/performance.md, into a results folder. Some 25 minutes on 2 quiet cores with 24 GiB of memory;
# before that, once, the making of the files (20 GB).
#
#   scripts/paired_all.sh MODELS RESULTS
#
# MODELS holds SmolLM2-135M-Instruct.Q4_1.gguf and takes the files made from it and the synthetic ones.
# Needs: pip install llama-cpp-python; pip install --no-deps ik-llama-cpp-python kt-kernel
set -e
models=$1 results=$2 here=$(dirname "$0")
smol=$models/SmolLM2-135M-Instruct lite=$models/deepseek-v2-lite.Q4_K_M.gguf v2=$models/deepseek-v2-4-layers.Q4_K_M.gguf

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
[ -e "$v2" ] || python -m kbench synth deepseek-v2-chat --layers 4 -o "$v2"

run paired_engines.py "$smol.Q4_1.gguf" "$smol.Q4_0.gguf" "$smol.Q4_K_M.gguf" "$smol.Q8_0.gguf" \
    --against llama.cpp --against ik_llama.cpp --pairs 10 --logits
run paired_engines.py "$v2" "$lite" --against ik_llama.cpp --against llama.cpp --pairs 10 --visit 5 \
    --prompt 256 --generate 32 --at-once no
run paired_engines.py "$smol.Q4_1.gguf" --against kbench:threads=1,planes=2 --planes 2 --pairs 10
run paired_moe.py --tokens 1 --experts 160 --pairs 10
run paired_moe.py --tokens 512 --experts 64 --pairs 10
run paired_torch.py --pairs 10
run paired_roof.py "$smol.Q4_1.gguf" "$smol.Q4_0.gguf" "$smol.Q4_K_M.gguf" "$smol.Q8_0.gguf" "$v2" "$lite" --pairs 10
run paired_roof.py --pairs 10
python "$here/paired_table.py" "$results"
