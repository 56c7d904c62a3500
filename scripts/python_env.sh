#!/bin/bash
# Creates the virtual environment of the Python tests, outside the source tree, with pinned versions of numpy,
# pytest, mypy, torch and transformers. An environment that is complete is left as it is. The last line of the
# output says what is missing, and the tests that need it are skipped.
#
# PyPI's torch is built for CUDA. The tests use it on the CPU, but its libraries must load. Libraries that the
# machine's CUDA toolkit lacks come from NVIDIA's packages, one at a time, until torch can be imported.
#
#   scripts/python_env.sh [FOLDER]    FOLDER: default ${XDG_CACHE_HOME:-~/.cache}/moefarm/venv
set -uo pipefail
folder=${1:-${XDG_CACHE_HOME:-$HOME/.cache}/moefarm/venv}
LIMIT_S=300 # installing torch may take this long
TORCH=2.11.0
BASE="numpy==2.4.6 pytest==9.2.0 mypy==2.4.1 typing_extensions==4.16.0 filelock==4.3.1 sympy==1.14.0
      mpmath==1.3.0 networkx==3.6.1 jinja2==3.1.6 markupsafe==3.0.4 fsspec==2026.9.0 setuptools==80.9.0"
TRANSFORMERS="transformers==5.17.0 huggingface_hub==1.33.0 tokenizers==0.23.3 safetensors==0.8.0
              regex==2026.11.19 pyyaml==6.0.4 tqdm==4.70.1"
# library   package that has it
PACKAGES='
libcublas       nvidia-cublas
libcublasLt     nvidia-cublas
libcudart       nvidia-cuda-runtime
libcudnn        nvidia-cudnn-cu13
libcufft        nvidia-cufft
libcufile       nvidia-cufile
libcupti        nvidia-cuda-cupti
libcurand       nvidia-curand
libcusolver     nvidia-cusolver
libcusparse     nvidia-cusparse
libcusparseLt   nvidia-cusparselt-cu13
libnccl         nvidia-nccl-cu13
libnvJitLink    nvidia-nvjitlink
libnvrtc        nvidia-cuda-nvrtc
libnvshmem_host nvidia-nvshmem-cu13
libnvToolsExt   nvidia-nvtx
'
python=$folder/bin/python
log=$folder.log
end=$((SECONDS + LIMIT_S))

pip() {
    [ $SECONDS -lt $end ] &&
        timeout $((end - SECONDS)) "$python" -m pip install -q --disable-pip-version-check "$@" >>"$log" 2>&1
}

give_up() {
    echo "python environment: $1 (log: $log); tests that need it are skipped"
    exit 0
}

import_torch() {
    "$python" -c 'import torch' 2>&1
}

mkdir -p "$(dirname "$folder")"
: >"$log"
if [ ! -x "$python" ] && ! python3 -m venv "$folder" >>"$log" 2>&1; then
    rm -rf "$folder"
    give_up "python3 -m venv failed"
fi
# shellcheck disable=SC2086
"$python" -c 'import numpy, pytest, mypy' 2>/dev/null || pip $BASE || give_up "no numpy, pytest and mypy"
"$python" -c 'import importlib.metadata as m, sys; sys.exit(m.version("torch") != sys.argv[1])' $TORCH \
    2>/dev/null || pip --no-deps torch==$TORCH || give_up "no torch"
last=
until error=$(import_torch); do
    library=$(grep -oE 'lib[A-Za-z_]+\.so' <<<"$error" | head -n 1)
    package=$(awk -v name="${library%.so}" '$1 == name { print $2 }' <<<"$PACKAGES")
    if [ -z "$package" ] || [ "$package" = "$last" ]; then
        give_up "torch cannot be imported: $(tail -n 1 <<<"$error")"
    fi
    pip --no-deps "$package" || give_up "no $package, which torch needs"
    last=$package
done
# shellcheck disable=SC2086
"$python" -c 'import transformers' 2>/dev/null || pip $TRANSFORMERS || give_up "no transformers"
echo "python environment: $folder"
