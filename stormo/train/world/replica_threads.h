#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace stormo::train {

/// Threads that stay, one for each replica of a process.
///
/// libtorch's intra-op threads are divided: each of n threads computes with 1/n, at least one, of
/// the threads that the maker of this computes with, whose own number stays. Threads that others
/// start while this is being made may get the smaller number.
class ReplicaThreads {
 public:
  explicit ReplicaThreads(int n);
  ~ReplicaThreads();
  ReplicaThreads(const ReplicaThreads&) = delete;
  ReplicaThreads& operator=(const ReplicaThreads&) = delete;

  /// work(i) on thread i, for the first `count` threads, under the caller's modes of libtorch
  /// (recording of gradients, autocast). Blocks until all have returned, then rethrows the
  /// exception that came first. One caller at a time, and none of the threads.
  void run(int count, const std::function<void(int)>& work);

 private:
  void serve(int i, int intra_op_threads);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void(int)> work_;
  int count_ = 0;            // threads that take part in the round
  int busy_ = 0;             // of these, or of those that start
  std::uint64_t round_ = 0;  // of run()
  bool over_ = false;
  std::exception_ptr first_;
  std::vector<std::thread> threads_;
};

}  // namespace stormo::train
