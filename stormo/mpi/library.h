#pragma once

#include <mpi.h>

#include <atomic>
#include <mutex>
#include <string_view>

#include <stormo/base/status.h>

namespace stormo::mpi {

/// MPI of this process. Initialised at first need; finalised when the process ends, if it was
/// initialised here and nothing is left that MPI_Finalize would wait for.
class Library {
 public:
  /// The one of this process; owned by it.
  static Result<Library*> open();
  ~Library();
  Library(const Library&) = delete;

  /// Calls MPI: one thread at a time, as MPI_THREAD_SERIALIZED wants it.
  template <class F>
  Status call(std::string_view name, F&& f) {
    const std::lock_guard lock(mutex_);
    return to_status(name, f());
  }

  void group_begins() { ++unfinished_; }
  void group_ends() { --unfinished_; }
  /// A request will never be complete.
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
