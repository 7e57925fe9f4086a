#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/status.h>

namespace stormo::data {

/// Labels and the classes 0 .. size()-1 that they stand for. No classes by default.
class Classes {
 public:
  /// From the labels of the training part. Where all of them are whole numbers from 0 on, these are
  /// the classes; else the distinct texts in ascending order are.
  static Classes of(std::span<const std::string> labels);
  /// Distinct names in ascending order.
  static Classes named(std::vector<std::string> names);
  /// The numbers from 0 to size - 1, which have no names.
  static Classes numbers(std::int64_t size);

  std::int64_t size() const { return size_; }
  /// Ascending; empty where labels are numbers.
  const std::vector<std::string>& names() const { return names_; }
  /// What to call a class; its number where it has no name.
  std::string name(std::int64_t index) const;
  bool operator==(const Classes&) const = default;
  /// kInvalidArgument for a label that training has not seen.
  Result<std::int64_t> find(std::string_view label) const;

 private:
  std::vector<std::string> names_;  ///< ascending; empty: labels are numbers
  std::int64_t size_ = 0;
};

}  // namespace stormo::data
