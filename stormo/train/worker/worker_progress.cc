#include <stormo/train/worker/worker_progress.h>

#include <new>

namespace stormo::train {

WorkerProgress::WorkerProgress(comm::Communicator& world) : world_(world) {
  std::int64_t offset = -1;
  if (world_.rank() == 0) {
    const auto ranks = static_cast<std::size_t>(world_.size());
    void* memory = world_.arena().allocate(ranks * sizeof(Entry));
    if (memory != nullptr) {
      for (std::size_t r = 0; r < ranks; ++r) new (static_cast<Entry*>(memory) + r) Entry;
      offset = static_cast<std::int64_t>(world_.arena().offset_of(memory));
    }
  }
  throw_if_error(world_.broadcast(std::span(&offset, 1), 0));
  if (offset < 0) throw Error(Status(Code::kExhausted, "no room in the Arena of rank 0"));
  entries_ = reinterpret_cast<Entry*>(world_.peer_address(0, static_cast<std::uint64_t>(offset)));
}

WorkerProgress::~WorkerProgress() {
  if (world_.barrier().ok() && world_.rank() == 0) world_.arena().deallocate(entries_);
}

void WorkerProgress::add_step(double loss_sum, std::int64_t samples) {
  Entry& e = mine();
  e.loss_sum.store(e.loss_sum.load(std::memory_order_relaxed) + loss_sum,
                   std::memory_order_relaxed);
  e.samples.fetch_add(samples, std::memory_order_relaxed);
}

WorkerProgress::Totals WorkerProgress::totals() const {
  Totals all;
  for (int r = 0; r < world_.size(); ++r) {
    all.loss_sum += entries_[r].loss_sum.load(std::memory_order_relaxed);
    all.samples += entries_[r].samples.load(std::memory_order_relaxed);
  }
  return all;
}

void WorkerProgress::call() { entries_[0].called.store(true, std::memory_order_release); }
bool WorkerProgress::called() const { return entries_[0].called.load(std::memory_order_acquire); }
void WorkerProgress::clear() { entries_[0].called.store(false, std::memory_order_release); }

}  // namespace stormo::train
