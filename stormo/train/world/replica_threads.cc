#include <stormo/train/world/replica_threads.h>

#include <algorithm>
#include <utility>

#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>

namespace stormo::train {

ReplicaThreads::ReplicaThreads(int n) : busy_(n) {
  const int whole = at::get_num_threads();
  for (int i = 0; i < n; ++i) {
    threads_.emplace_back([this, i, share = std::max(whole / n, 1)] { serve(i, share); });
  }
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return busy_ == 0; });
  at::set_num_threads(whole);
}

ReplicaThreads::~ReplicaThreads() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  changed_.notify_all();
  for (std::thread& t : threads_) t.join();
}

void ReplicaThreads::run(int count, const std::function<void(int)>& work) {
  std::unique_lock lock(mutex_);
  work_ = [modes = at::ThreadLocalState(), &work](int i) {
    const at::ThreadLocalStateGuard guard(modes);
    work(i);
  };
  count_ = busy_ = count;
  ++round_;
  changed_.notify_all();
  changed_.wait(lock, [this] { return busy_ == 0; });
  work_ = nullptr;
  if (first_) std::rethrow_exception(std::exchange(first_, nullptr));
}

void ReplicaThreads::serve(int i, int intra_op_threads) {
  // The number is the thread's own, and the default of threads that have not asked for theirs yet:
  // so this one asks first, and the constructor puts the default back.
  (void)at::get_num_threads();
  at::set_num_threads(intra_op_threads);
  std::unique_lock lock(mutex_);
  std::uint64_t served = 0;
  while (true) {
    if (--busy_ == 0) changed_.notify_all();
    do {
      changed_.wait(lock, [&] { return over_ || round_ != served; });
      if (over_) return;
      served = round_;
    } while (i >= count_);
    lock.unlock();
    std::exception_ptr thrown;
    try {
      work_(i);
    } catch (...) {
      thrown = std::current_exception();
    }
    lock.lock();
    if (thrown && !first_) first_ = thrown;
  }
}

}  // namespace stormo::train
