#!/usr/bin/env bash
# New seeds every run, and a failure that can be repeated. usage: replay_test.sh BROKEN_TARGET
set -uo pipefail
unset STORMO_FUZZ_SEED
fail() { echo "replay_test: $1" >&2; exit 1; }
seed_of() { sed -n 's/.*--seed \([0-9]*\)$/\1/p' <<<"$1" | head -n 1; }

first=$("$1" --runs 0) second=$("$1" --runs 0)
[ -n "$(seed_of "$first")" ] || fail "no seed is printed: $first"
[ "$first" != "$second" ] || fail "two runs have the same seed"
[ "$(STORMO_FUZZ_SEED=7 "$1" --runs 0)" = "$("$1" --runs 0 --seed 7)" ] || fail "the variable is not the flag"

found=$("$1" --runs 1000000 2>&1) && fail "the bug was not found: $found"
repeat=$(grep -o -- '--seed [0-9]* --only [0-9]*' <<<"$found") || fail "nobody says how to repeat it: $found"
# shellcheck disable=SC2086
again=$("$1" $repeat 2>&1) && fail "$repeat does not repeat it"
grep -q 'the bug' <<<"$again" || fail "another failure: $again"
"$1" --runs 0 --seed 1 >/dev/null || fail "sound inputs fail"
