#pragma once

#include <mpi.h>

#include <atomic>
#include <mutex>
#include <string_view>

#include <stormo/base/status.h>

namespace stormo::mpi {

/// MPI in this process. Initialised when first needed. Finalised when the process ends, if it was
/// initialised here and MPI_Finalize would not have to wait for a request or group.
class Library {
 public:
  /// The only Library object; owned by the process.
  static Result<Library*> open();
  ~Library();
  Library(const Library&) = delete;

  /// Calls MPI, one thread at a time, as MPI_THREAD_SERIALIZED requires.
  template <class F>
  Status call(std::string_view name, F&& f) {
    const std::lock_guard lock(mutex_);
    return to_status(name, f());
  }

  void group_begins() { ++unfinished_; }
  void group_ends() { --unfinished_; }
  /// Records that a request will never be complete.
  void abandon() { ++unfinished_; }

 private:
  Library() = default;
  Status initialise();
  static Status to_status(std::string_view name, int code);

  std::mutex mutex_;
  bool ours_ = false;
  std::atomic<int> unfinished_{0};
};

}  // namespace stormo::mpi
