#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/status.h>

namespace stormo::data {

/// Labels and the classes 0 .. size()-1 that they stand for.
class Classes {
 public:
  /// From the labels of the training part. Where all of them are whole numbers from 0 on, these are
  /// the classes; else the distinct texts in ascending order are.
  static Classes of(std::span<const std::string> labels);

  std::int64_t size() const { return size_; }
  /// kInvalidArgument for a label that training has not seen.
  Result<std::int64_t> find(std::string_view label) const;

 private:
  std::vector<std::string> names_;  ///< ascending; empty: labels are numbers
  std::int64_t size_ = 0;
};

}  // namespace stormo::data
