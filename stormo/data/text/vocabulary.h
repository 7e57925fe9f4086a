#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/status.h>

namespace stormo::data {

/// The symbols of a text and their ids 0 .. size()-1.
class Vocabulary {
 public:
  /// The 256 bytes: encodes any text.
  static Vocabulary bytes() { return Vocabulary({}); }
  /// The distinct characters (Unicode code points) of `text`, ascending. kInvalidArgument when the
  /// text is empty or not UTF-8. The decoded list of all ids is a text with the same vocabulary.
  static Result<Vocabulary> characters(std::string_view text);

  std::int64_t size() const;
  /// kInvalidArgument names the first character that the vocabulary lacks.
  Result<std::vector<std::int32_t>> encode(std::string_view text) const;
  /// Every id must be in [0, size()).
  std::string decode(std::span<const std::int64_t> ids) const;
  bool operator==(const Vocabulary&) const = default;

 private:
  explicit Vocabulary(std::vector<char32_t> sorted) : characters_(std::move(sorted)) {}

  std::vector<char32_t> characters_;  ///< by id; empty: ids are bytes
};

}  // namespace stormo::data
