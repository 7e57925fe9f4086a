#pragma once

#include <string>
#include <string_view>

#include <stormo/base/clock.h>
#include <stormo/base/status.h>

namespace stormo::transport {

/// Values that all ranks of a job see, by key. Thread-safe.
class KeyValues {
 public:
  virtual ~KeyValues() = default;
  /// The value that the key has afterwards: `value`, or the one that was there first.
  virtual Result<std::string> set_if_absent(std::string_view key, std::string_view value,
                                            Deadline by) = 0;
  /// Blocks until the key has a value, at most until `by`.
  virtual Result<std::string> get(std::string_view key, Deadline by) = 0;
  /// Removes the key if it has this value.
  virtual Status erase_if(std::string_view key, std::string_view value, Deadline by) = 0;
};

}  // namespace stormo::transport
