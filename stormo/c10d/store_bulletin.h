#pragma once

#include <exception>
#include <string>
#include <vector>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <stormo/comm/job/bulletin.h>

namespace stormo::c10d {

/// PyTorch's store as a Bulletin. Who waits for a value can be interrupted.
class StoreBulletin final : public comm::Bulletin {
 public:
  explicit StoreBulletin(c10::intrusive_ptr<::c10d::Store> store);
  Status set(const std::string& key, const std::string& value) override;
  Result<std::string> get(const std::string& key, Deadline by) override;
  Result<std::vector<std::string>> get_all(const std::vector<std::string>& keys,
                                           Deadline by) override;
  /// What check_interrupt() has thrown in get(), which has returned kInterrupted then.
  void rethrow_interrupt() const;

 private:
  std::vector<std::string> values_of(const std::vector<std::string>& keys);

  const c10::intrusive_ptr<::c10d::Store> store_;
  const bool is_of_files_;
  std::exception_ptr interrupt_;
};

}  // namespace stormo::c10d
