#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/status.h>

namespace stormo::data {

/// Maps labels to classes 0 .. size()-1. No classes by default.
class Classes {
 public:
  /// From the labels of the training split. If all labels are whole numbers from 0 on, they are the
  /// classes; else the classes are the distinct texts in ascending order.
  static Classes of(std::span<const std::string> labels);
  /// Distinct names in ascending order.
  static Classes named(std::vector<std::string> names);
  /// The numbers from 0 to size - 1, which have no names.
  static Classes numbers(std::int64_t size);

  std::int64_t size() const { return size_; }
  /// Names in ascending order; empty if labels are numbers.
  const std::vector<std::string>& names() const { return names_; }
  /// Name of a class; its number if it has no name.
  std::string name(std::int64_t index) const;
  bool operator==(const Classes&) const = default;
  /// The class of a label; kInvalidArgument for a label that is not in the training split.
  Result<std::int64_t> find(std::string_view label) const;

 private:
  std::vector<std::string> names_;  ///< ascending; empty: labels are numbers
  std::int64_t size_ = 0;
};

}  // namespace stormo::data
