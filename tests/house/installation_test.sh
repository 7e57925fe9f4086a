#!/usr/bin/env bash
# Installs a build, moves it elsewhere, and uses it as a stranger would: CMake, pkg-config, program.
# usage: installation_test.sh SOURCE BUILD [LIBTORCH]
set -euo pipefail
source=$1 build=$2 torch=${3:+$(cd "$3" && pwd)}
unset GTEST_OUTPUT STORMO_TORCH  # nothing but what the test says
folder=$build/installation
prefix=$folder/moved
rm -rf "$folder"
mkdir -p "$folder"
cmake --install "$build" --prefix "$folder/first" >"$folder/install.log"
mv "$folder/first" "$prefix"

echo "== nothing installed knows where it was built"
for path in "$source" "$build" ${torch:+"$torch"} "$folder/first"; do
  if grep -rlF -- "$path" "$prefix"; then
    echo "the files above contain $path" >&2
    exit 1
  fi
done

echo "== how it is linked"
"$source/tools/elf_check" "$prefix"

echo "== no code from the current folder"
# Whoever loads one of these tells the file that DECOY_TELLS names. It has what the program wants of the
# library: symbols are bound before anything runs.
decoys=$folder/decoys
program=$prefix/bin/stormo
[ -z "$torch" ] || program=$prefix/libexec/stormo/stormo-train
mkdir -p "$decoys/torch/lib"
cat >"$decoys/decoy.c" <<'DECOY'
#include <stdio.h>
#include <stdlib.h>
__attribute__((constructor)) static void tell(void) {
  FILE* file = fopen(getenv("DECOY_TELLS"), "a");
  if (file) fputs("loaded\n", file);
}
DECOY
nm -D --undefined-only "$program" | sed -nE 's/.* (XXH[A-Za-z0-9_]+)$/void \1(void) {}/p' >>"$decoys/decoy.c"
gcc -shared -fPIC -o "$decoys/libxxhash.so.0" "$decoys/decoy.c"
cp "$decoys/libxxhash.so.0" "$decoys/torch/lib/libtorch_cpu.so"
: >"$decoys/torch/__init__.py"
export DECOY_TELLS=$decoys/told
printf 'import os\nopen(os.environ["DECOY_TELLS"], "a").write("loaded\\n")\n' >"$decoys/sitecustomize.py"
in_decoys() { (cd "$decoys" && "$@" >/dev/null 2>&1) || true; }
in_decoys env LD_LIBRARY_PATH=".${torch:+:$torch/lib}" "$program" --version
[ -s "$DECOY_TELLS" ] || { echo "the decoy does not work: nothing below is proven" >&2; exit 1; }
rm "$DECOY_TELLS"
in_decoys env PYTHONPATH=/none: python3 -c ''
[ -s "$DECOY_TELLS" ] || { echo "the decoy for Python does not work" >&2; exit 1; }
rm "$DECOY_TELLS"
in_decoys "$build/bin/stormo" --version
in_decoys "$program" --version
in_decoys "$prefix/bin/stormo" --version
if [ -n "$torch" ]; then
  in_decoys "$build/bin/stormo-train" --version
  in_decoys "$prefix/bin/stormo" doctor
  for folders in : . /none: :/none /none::/none torch/..; do
    in_decoys env PYTHONPATH=$folders "$prefix/bin/stormo" doctor
    in_decoys env PYTHONPATH=$folders cmake -S "$source/tests/consumer" -B "$folder/decoyed" -DCMAKE_PREFIX_PATH="$prefix"
    rm -rf "$folder/decoyed"
  done
  printf '#!/bin/sh\necho loaded >>"$DECOY_TELLS"\n' >"$decoys/python3"
  chmod +x "$decoys/python3"
  for folders in :/usr/bin:/bin .:/usr/bin:/bin; do
    in_decoys env PATH=$folders "$prefix/bin/stormo" doctor
  done
  rm "$decoys/python3"
  in_decoys env STORMO_TORCH="$torch" "$prefix/bin/stormo" doctor
  in_decoys env STORMO_TORCH="$torch" LD_LIBRARY_PATH="/none;lib;:lib:" "$prefix/libexec/stormo/start-train" --version
fi
[ ! -e "$DECOY_TELLS" ] || { echo "a library of the current folder was loaded" >&2; exit 1; }
unset DECOY_TELLS

cache=$(command -v ccache || true)
export CCACHE_BASEDIR=$source  # what one clone has compiled need not be compiled again in another
configure() {  # NAME SOURCE ARGUMENTS...
  local name=$1 project=$2
  shift 2
  cmake -G Ninja -S "$project" -B "$folder/$name" -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH="$prefix" \
    ${cache:+-DCMAKE_CXX_COMPILER_LAUNCHER="$cache"} "$@" >"$folder/$name.log" 2>&1 || { cat "$folder/$name.log"; exit 1; }
  ninja -C "$folder/$name" --quiet
}

echo "== Stormo::comm without libtorch, by find_package"
configure comm "$source/tests/house/comm_consumer"
"$folder/comm/comm_consumer"

echo "== and by pkg-config"
export PKG_CONFIG_PATH=$prefix/lib/pkgconfig
# shellcheck disable=SC2046
$cache g++ $(pkg-config --cflags stormo-comm) -c "$source/tests/house/comm_consumer/main.cc" -o "$folder/main.o"
# shellcheck disable=SC2046
g++ "$folder/main.o" -o "$folder/by_pkg_config" $(pkg-config --libs stormo-comm)
"$folder/by_pkg_config"

echo "== the installed program, and ranks that need no libtorch"
"$prefix/bin/stormo" --version
timeout 60 "$prefix/bin/stormo" run -n 2 -- "$folder/comm/comm_consumer" \
  >"$folder/comm.out" </dev/null
[ "$(grep -c 'of 2: sum 3' "$folder/comm.out")" = 2 ] || { cat "$folder/comm.out"; exit 1; }

echo "== completion for three shells, manual pages, documents, and data for a first run"
bash -n "$prefix/share/bash-completion/completions/stormo"
zsh=$prefix/share/zsh/site-functions/_stormo fish=$prefix/share/fish/vendor_completions.d/stormo.fish
grep -q "'stormo plan') candidates='list show" "$zsh"
grep -q -- '-a fetch' "$fish"
! command -v zsh >/dev/null || zsh -n "$zsh"
! command -v fish >/dev/null || fish -n "$fish"
for page in stormo stormo-train stormo-plan-show stormo-data-fetch; do
  [ -s "$prefix/share/man/man1/$page.1" ] || { echo "no manual page $page" >&2; exit 1; }
done
[ ! -e "$prefix/share/man/man1/stormo-agent.1" ]
if command -v man >/dev/null; then
  MANPATH=$prefix/share/man MANPAGER=cat man stormo-train | grep -- --dry-run >/dev/null
fi
[ -s "$prefix/share/stormo/docs/README.md" ] && [ -s "$prefix/share/stormo/examples/ddp.cc" ]
mkdir "$folder/run"
(cd "$folder/run" && "$prefix/bin/stormo" data fetch digits && ! "$prefix/bin/stormo" data fetch digits 2>refused)
grep -q "'data/digits' is there already" "$folder/run/refused"
[ "$(stat -c %s "$folder/run/data/digits/train-images-idx3-ubyte")" = $((16 + 6000 * 28 * 28)) ]
[ -n "$torch" ] || exit 0

echo "== what needs libtorch, where the libtorch of this machine is found only by STORMO_TORCH"
without_torch=$folder/no_python
mkdir -p "$without_torch"
printf '#!/bin/sh\nexit 1\n' >"$without_torch/python3"
chmod +x "$without_torch/python3"
printf 'to be or not to be, that is it\n%.0s' {1..200} >"$folder/run/a.txt"
train() {  # ARGUMENTS...
  (cd "$folder/run" && PATH=$without_torch:$PATH timeout 120 "$prefix/bin/stormo" train \
    "$prefix/share/stormo/recipes/gpt_shakespeare.toml" data.path=a.txt checkpoint.directory= steps=2 \
    model.layers=1 model.width=16 model.heads=2 model.context=16 "$@" >"$folder/train.out" 2>&1 </dev/null)
}
for ranks in 1 2; do
  status=0
  train -n $ranks || status=$?
  if [ $status != 2 ] || ! grep -q 'no libtorch found; set STORMO_TORCH' "$folder/train.out"; then
    cat "$folder/train.out"
    echo "without libtorch: exit code $status, or no remedy" >&2
    exit 1
  fi
  STORMO_TORCH=$torch train -n $ranks || { cat "$folder/train.out"; exit 1; }
done

echo "== recipes by their names, with data that were made here"
named() { (cd "$folder/run" && STORMO_TORCH=$torch timeout 120 "$prefix/bin/stormo" "$@" >"$folder/train.out" 2>&1 </dev/null); }
named train mnist_mlp -n 2 data.path=data/digits steps=60 checkpoint.directory= --json || { cat "$folder/train.out"; exit 1; }
tail -1 "$folder/train.out" | grep -q '"event":"end".*"test_accuracy":0\.9' || { cat "$folder/train.out"; exit 1; }
"$prefix/bin/stormo" data fetch table --to "$folder/run/leaves" >/dev/null
named train leaves/leaves.toml steps=100 checkpoint.directory= --json || { cat "$folder/train.out"; exit 1; }
tail -1 "$folder/train.out" | grep -q '"test_accuracy":\(0\.9\|1\)' || { cat "$folder/train.out"; exit 1; }
for recipe in quickstart gpt_3d.toml; do
  named plan show $recipe -n 4 data.path="$prefix/share/stormo" 'data.extensions=[".md"]' || { cat "$folder/train.out"; exit 1; }
done
! named train mnistt || exit 1
mkdir -p "$prefix/lib/stormo"
ln -s "$torch" "$prefix/lib/stormo/torch"
train -n 2 || { cat "$folder/train.out"; exit 1; }
rm "$prefix/lib/stormo/torch"
mv "$prefix/libexec/stormo/stormo-train" "$folder/aside"
STORMO_TORCH=$torch train -n 2 && exit 1
grep -q 'stormo-train, which is missing' "$folder/train.out" || { cat "$folder/train.out"; exit 1; }
mv "$folder/aside" "$prefix/libexec/stormo/stormo-train"

echo "== Stormo::stormo in a training loop of its own"
configure consumer "$source/tests/consumer" -DSTORMO_TORCH="$torch"
[ "$(ldd "$folder/consumer/consumer" | grep -c 'libgomp\|libomp')" = 1 ] ||
  { echo "not exactly one OpenMP runtime:"; ldd "$folder/consumer/consumer" | grep omp; exit 1; }

echo "== a configure that found no libtorch is forgotten: all that its message advises helps"
printf '#!/bin/sh\necho "%s"\n' "$torch" >"$folder/python3"
chmod +x "$folder/python3"
configured() {  # NAME ARGUMENTS...   in build folder NAME, with no python3 but one without torch
  local name=$1
  shift
  PATH=${python:-$without_torch}:$PATH cmake -G Ninja -S "$source/tests/consumer" -B "$folder/$name" \
    -DCMAKE_PREFIX_PATH="$prefix" "$@" >"$folder/$name.log" 2>&1
}
must() { "$@" || { cat "$folder/$2.log"; echo "must configure: $*" >&2; exit 1; }; }
must_not() {
  if "$@" || ! grep -q -e '-DSTORMO_TORCH=FOLDER' "$folder/$2.log"; then
    cat "$folder/$2.log"
    echo "must fail and say what helps: $*" >&2
    exit 1
  fi
}
must_not configured by_variable
must configured by_variable -DSTORMO_TORCH="$torch"
must_not configured by_environment
STORMO_TORCH=/usr must_not configured by_environment  # a folder that is none
STORMO_TORCH=$torch must configured by_environment
must configured by_environment  # what was found is remembered, as when ninja configures again
must_not configured by_python
python=$folder must configured by_python

same_weights() {  # the lines of both ranks end with the same weights
  tee /dev/stderr <"$1" | grep -oE 'rank [01] of 2: .*weights .*' | sed 's/.*weights //' | sort | uniq -c |
    awk '{ n++; count = $1 } END { exit !(n == 1 && count == 2) }'
}
echo "== under stormo run"
STORMO_TORCH=$torch timeout 120 "$prefix/bin/stormo" run -n 2 -- "$folder/consumer/consumer" >"$folder/run.out" </dev/null
same_weights "$folder/run.out"

echo "== a pass of its own trains, and to the same bits as replicas"
STORMO_TORCH=$torch timeout 120 "$prefix/bin/stormo" run -n 2 -- "$folder/consumer/consumer_pass" >"$folder/pass.out" </dev/null
same_weights "$folder/pass.out"
! grep -q NOT "$folder/pass.out"

torchrun=$(dirname "$torch")/../../../bin/torchrun
if [ -x "$torchrun" ]; then
  echo "== under torchrun"
  # an address, not the name that it takes by itself: not every machine can resolve "localhost"
  OMP_NUM_THREADS=1 timeout 120 "$torchrun" --nproc-per-node 2 --no-python \
    --master-addr 127.0.0.1 --master-port $((20000 + $$ % 20000)) \
    "$folder/consumer/consumer" >"$folder/torchrun.out" </dev/null
  same_weights "$folder/torchrun.out"
else
  echo "== torchrun: not run, this libtorch has none"
fi
