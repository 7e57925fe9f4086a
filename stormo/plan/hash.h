#pragma once

#include <cstdint>
#include <string_view>

#include <stormo/base/rng.h>

namespace stormo::plan {

/// Hash over a sequence of numbers and strings; the same on every machine and in every version.
/// Internal to plan/: for cache keys and comparisons, not for untrusted input.
class StableHash {
 public:
  void add(std::uint64_t value) {
    char bytes[8];
    for (char& b : bytes) {
      b = static_cast<char>(value & 0xff);
      value >>= 8;
    }
    hash_ = fnv1a({bytes, sizeof bytes}, hash_);
  }
  void add(std::string_view text) {
    add(std::uint64_t{text.size()});  // so that ("ab", "c") and ("a", "bc") differ
    hash_ = fnv1a(text, hash_);
  }
  std::uint64_t value() const { return hash_; }

 private:
  std::uint64_t hash_ = fnv1a("");
};

}  // namespace stormo::plan
