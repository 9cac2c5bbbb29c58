#!/usr/bin/env bash
# Coverage-guided fuzzing with libFuzzer on stable Rust. Needs g++ (or clang++) to build libFuzzer.
#
#   fuzz/run.sh --ci                        5 M parser runs and 50 k openings of whole stores, two minutes
#   fuzz/run.sh leaf wal --seconds 600      these two targets, ten minutes each
#   fuzz/run.sh --runs 1000000              every target, a million inputs each
#   fuzz/run.sh --replay leaf FILE          run one input and print the panic message
#   fuzz/run.sh --minimise leaf FILE        write a smaller input with a finding to FILE.min
#
# By default, two targets run at the same time; PANDODB_FUZZ_JOBS sets another number. The last line of the output is
# JSON. The exit code is 1 if there was a finding. The input of a finding is kept in fuzz/artifacts/TARGET/. New inputs
# are saved in fuzz/target/corpus/TARGET/, and later runs use them.
set -euo pipefail
cd "$(dirname "$0")"

host=$(rustc -vV | sed -n 's/^host: //p')
target_dir=${CARGO_TARGET_DIR:-target}
bins=$target_dir/$host/release
# The maximum size of one allocation in MiB: the size of the largest block (65 MiB) plus the memory that is needed to
# read it.
malloc_limit=160
slow_input=20

build() {
    # The compiler flags instrument all code that is built for the host triple. With `--target`, these flags do not
    # apply to build scripts and macros, so these are not instrumented. Dead code is left out of the binary, because
    # each run visits every counter, even counters of dead code.
    RUSTFLAGS="--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
        -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
        -Cllvm-args=-sanitizer-coverage-trace-compares" \
        cargo build --release --features libfuzzer --target "$host" --quiet \
        $(printf -- '--bin %s ' $(cut -d' ' -f1 "$target_dir/fuzz-lengths"))
}

plain() {
    cargo build --release --quiet --bin pandodb-fuzz
    "$target_dir/release/pandodb-fuzz" "$@"
}

# Runs one target until its limit, and appends a line with its figures to the file of all figures.
one() {
    local name=$1 runs=$2 seconds=$3 began
    began=$(date +%s.%N)
    local log=$target_dir/fuzz-$name.log
    mkdir -p "$target_dir/corpus/$name" "artifacts/$name"
    local failures=0
    "$bins/$name" "$target_dir/corpus/$name" "corpus/$name" -artifact_prefix="artifacts/$name/" -seed="$seed" \
        -runs="$runs" -max_total_time="$seconds" -malloc_limit_mb="$malloc_limit" -rss_limit_mb=2048 \
        -timeout="$slow_input" -max_len="$(longest "$name")" -len_control=20 -reload=0 -print_final_stats=1 \
        >"$log" 2>&1 || failures=1
    local ran coverage took
    ran=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    coverage=$(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$log" | tail -1)
    took=$(echo "$(date +%s.%N) - $began" | bc)
    echo "$name ${ran:-0} $took $failures ${coverage:-0}" >>"$figures"
    echo "$name: ${ran:-0} runs in $took s, $((failures)) findings, $coverage edges" >&2
    if ((failures)); then
        grep -m3 -A3 -E 'panicked at|ERROR: libFuzzer|SUMMARY' "$log" >&2 || tail -5 "$log" >&2
        local file
        file=$(sed -n 's/.*Test unit written to //p' "$log" | tail -1)
        echo "  replay with: fuzz/run.sh --replay $name fuzz/$file" >&2
    fi
}

# Does the same with the driver that has no coverage feedback. For targets with long runs, this driver is ten times as
# fast.
one_plain() {
    local name=$1 runs=$2 began failures=0
    began=$(date +%s.%N)
    "$target_dir/release/pandodb-fuzz" drive "$name" --runs "$runs" --seed "$seed" >&2 || failures=1
    echo "$name $runs $(echo "$(date +%s.%N) - $began" | bc) $failures 0" >>"$figures"
}

longest() {
    sed -n "s/^$1 //p" "$target_dir/fuzz-lengths"
}

# The number of runs of a target in continuous integration. The numbers add up to the totals in the first comment of
# this file.
ci_runs() {
    case $1 in
        store) echo 50000 ;;
        ops) echo 5000 ;;
        run) echo 10000 ;;
        trunk) echo 50000 ;;
        wal) echo 150000 ;;
        tombstones | page_map) echo 100000 ;;
        import | leaf | inner) echo 550000 ;;
        # This target is slow, because it builds whole filters from thousands of hashes.
        quotient) echo 50000 ;;
        *) echo 750000 ;;
    esac
}

seed=1 runs=-1 seconds=0 ci=0 chosen=()
while (($#)); do
    case $1 in
        --ci) ci=1 ;;
        --seconds) seconds=$2 && shift ;;
        --runs) runs=$2 && shift ;;
        --seed) seed=$2 && shift ;;
        --seeds) plain seeds && exit ;;
        --replay | --minimise)
            word=${1#--} name=$2 && shift 2
            # Paths are relative to the caller's directory, which is the root of the project or this directory.
            files=()
            for file in "$@"; do files+=("${file#fuzz/}"); done
            plain "$word" "$name" "${files[@]}"
            exit
            ;;
        --one)
            figures=$3 seed=$6
            if [[ ${7:-} == ci && $2 =~ ^(store|run|ops)$ ]]; then one_plain "$2" "$4"; else one "$2" "$4" "$5"; fi
            exit
            ;;
        -*) sed -n '2,11p' run.sh >&2 && exit 2 ;;
        *) chosen+=("$1") ;;
    esac
    shift
done

mkdir -p "$target_dir"
plain lengths >"$target_dir/fuzz-lengths"
build
if ((${#chosen[@]} == 0)); then
    # The slowest targets start first, so that only a short target is still running at the end.
    mapfile -t chosen < <(tac "$target_dir/fuzz-lengths" | cut -d' ' -f1)
fi
if ((!ci && seconds == 0 && runs < 0)); then
    seconds=60
fi
figures=$(mktemp)
trap 'rm -f "$figures"' EXIT
began=$(date +%s.%N)
for name in "${chosen[@]}"; do
    limit=$runs
    mode=
    if ((ci)); then limit=$(ci_runs "$name") mode=ci; fi
    printf '%s\0' "$name $figures $limit $seconds $seed $mode"
done | xargs -0 -P "${PANDODB_FUZZ_JOBS:-2}" -I{} bash -c "./run.sh --one {}"
took=$(echo "$(date +%s.%N) - $began" | bc)

awk -v took="$took" '
    { runs += $2; failures += $4
      part = sprintf("\"%s\":{\"runs\":%d,\"seconds\":%.1f,\"rate\":%.0f,\"failures\":%d,\"edges\":%d}", \
          $1, $2, $3, $2 / ($3 + 0.001), $4, $5)
      parts = parts (NR > 1 ? "," : "") part }
    END { printf "{\"kind\":\"fuzz\",\"seconds\":%.1f,\"runs\":%d,\"rate\":%.0f,\"failures\":%d,\"targets\":{%s}}\n", \
          took, runs, runs / took, failures, parts
          exit failures > 0 }' "$figures"
