#!/usr/bin/env bash
# The point-cloud results, from nothing, on one GPU: benchmarks/train_points.sh DATA OUT [sweep|choose|final ...]
#   sweep   variants of the modern network side by side, on every fourth training cloud, held out
#   choose  the recipes of this data set on its validation part, a tenth of the training clouds
#   final   the recipes on all training clouds: what is shipped
set -euo pipefail
cd "$(dirname "$0")/.."
data=$1 out=$2
shift 2
python=${PYTHON:-python}
mkdir -p "$out"
for stage in "${@:-choose}"; do
  case $stage in
    sweep) $python benchmarks/sweep_points.py --data "$data" --jobs "${JOBS:-4}" --epochs "${EPOCHS:-150}" \
             --out "$out/sweep.json" ${VARIANTS:-} 2>&1 | tee "$out/sweep.log" ;;
    choose) for name in large small plus max; do
        $python -m gridless train "modelnet40-$name" --data "$data" --out "$out/choose-$name"
      done ;;
    final) for name in large small plus max; do
        $python -m gridless train "modelnet40-$name" --data "$data" --out "$out/final-$name" --all-data
      done ;;
    *) echo "no stage $stage: sweep, choose, final" >&2; exit 2 ;;
  esac
done
