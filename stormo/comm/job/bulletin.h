#pragma once

#include <string>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/base/status.h>

namespace stormo::comm {

/// A key-value store that the ranks of a job have in common before they are a group: another
/// program's, such as PyTorch's c10d::Store. Nobody else uses these keys. Used by one thread.
class Bulletin {
 public:
  virtual ~Bulletin() = default;
  virtual Status set(const std::string& key, const std::string& value) = 0;
  /// Blocks until the key has a value, at most until `by`: then kDeadlineExceeded. May be ended by
  /// an interrupt of the program, also when `by` has passed before.
  virtual Result<std::string> get(const std::string& key, Deadline by) = 0;
  /// The same of several keys: blocks until all of them have values.
  virtual Result<std::vector<std::string>> get_all(const std::vector<std::string>& keys,
                                                   Deadline by) {
    std::vector<std::string> values;
    for (const std::string& key : keys) {
      STORMO_ASSIGN_OR_RETURN(values.emplace_back(), get(key, by));
    }
    return values;
  }
};

}  // namespace stormo::comm
