#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace stormo::train {

/// A pool of threads, one for each replica of a process.
///
/// libtorch's intra-op threads are divided: each of n threads gets 1/n, at least one, of the number
/// of the thread that constructs this object. The number of that thread does not change. Other
/// threads that start during the construction may get the smaller number.
class ReplicaThreads {
 public:
  explicit ReplicaThreads(int n);
  ~ReplicaThreads();
  ReplicaThreads(const ReplicaThreads&) = delete;
  ReplicaThreads& operator=(const ReplicaThreads&) = delete;

  /// Runs work(i) on thread i, for the first `count` threads, with the caller's libtorch modes
  /// (recording of gradients, autocast). Blocks until all have returned, then rethrows the first
  /// exception. One caller at a time, which must not be one of the threads.
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
