#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <tuple>
#include <vector>

#include <bench/operations.h>
#include <stormo/base/dtype.h>

namespace stormo::bench {

/// A type that can be measured, by its name: all but bool, which cannot be added.
std::optional<DType> find_dtype(std::string_view name);

/// What ranks put into their buffers, and what must come out: pseudo-random small integers that
/// depend on element, rank and iteration, and whose sums over all ranks are exact in every type.
class Payload {
 public:
  Payload(DType dtype, int ranks, std::uint64_t elements, bool reduces);

  /// Writes every element of `in`, the input of `rank`.
  void rewrite(std::byte* in, std::uint64_t count, int rank, int iteration);
  /// Values that no outcome has.
  static void spoil(std::byte* out, std::uint64_t bytes);
  /// Whether `out` is, bit for bit, what `expected` says.
  bool holds(const std::byte* out, const std::vector<Segment>& expected, int iteration);

 private:
  using Pattern = std::vector<std::byte>;
  int value(std::uint64_t element, int rank, int iteration) const;
  const Pattern& pattern(int first, int last, int iteration);

  DType dtype_;
  int modulus_;
  std::uint64_t period_;  ///< elements after which an input repeats
  std::map<std::tuple<int, int, int>, Pattern> patterns_;
};

}  // namespace stormo::bench
