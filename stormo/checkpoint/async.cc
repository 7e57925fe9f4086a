#include <stormo/checkpoint/async.h>

#include <cstring>
#include <new>
#include <numeric>
#include <utility>
#include <vector>

#include <stormo/checkpoint/writer.h>

namespace stormo::checkpoint {
namespace {

constexpr std::size_t kAlignment = 64;

std::size_t room_for(const Piece& piece) {
  return (bytes_of(piece) + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

Result<std::unique_ptr<AsyncCheckpoint>> AsyncCheckpoint::create(comm::Communicator& world,
                                                                 std::string directory, int keep) {
  std::vector<Rank> all(static_cast<std::size_t>(world.size()));
  std::iota(all.begin(), all.end(), 0);
  STORMO_ASSIGN_OR_RETURN(std::unique_ptr<comm::Communicator> group,
                          world.subgroup(all, Deadline::never()));
  return std::unique_ptr<AsyncCheckpoint>(
      new AsyncCheckpoint(std::move(group), std::move(directory), keep));
}

AsyncCheckpoint::AsyncCheckpoint(std::unique_ptr<comm::Communicator> group, std::string directory,
                                 int keep)
    : group_(std::move(group)), directory_(std::move(directory)), keep_(keep) {}

AsyncCheckpoint::~AsyncCheckpoint() {
  if (thread_.joinable()) thread_.join();
}

Status AsyncCheckpoint::begin(Result<Snapshot> snapshot) {
  STORMO_RETURN_IF_ERROR(finish().status());
  copied_ = false;
  thread_ = std::thread([this, s = std::move(snapshot)]() mutable { save(s); });
  return ok_status();
}

void AsyncCheckpoint::save(Result<Snapshot>& snapshot) {
  if (snapshot.ok()) {
    const Status copied = copy(*snapshot);
    if (!copied.ok()) snapshot = copied;
  }
  {
    const std::lock_guard lock(mutex_);
    copied_ = true;
  }
  changed_.notify_all();
  Result<std::string> outcome = save_checkpoint(*group_, directory_, snapshot, keep_);
  const std::lock_guard lock(mutex_);
  outcome_ = std::move(outcome);
  if (outcome_.ok()) last_saved_ = *outcome_;
}

Status AsyncCheckpoint::copy(Snapshot& snapshot) {
  std::size_t bytes = 0;
  for (const Piece& p : snapshot.pieces) bytes += room_for(p);
  if (bytes > capacity_) {
    memory_.reset();
    memory_.reset(new (std::nothrow) std::byte[bytes]);
    capacity_ = memory_ == nullptr ? 0 : bytes;
    if (memory_ == nullptr) {
      return Status(Code::kExhausted,
                    "no memory for a copy of " + std::to_string(bytes) +
                        " bytes; save without one (checkpoint.asynchronous=false)");
    }
  }
  std::byte* next = memory_.get();
  for (Piece& p : snapshot.pieces) {
    if (bytes_of(p) > 0) std::memcpy(next, p.data, bytes_of(p));
    p.data = next;
    p.owner.reset();
    next += room_for(p);
  }
  return ok_status();
}

void AsyncCheckpoint::before_update() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return copied_; });
}

bool AsyncCheckpoint::failed() {
  const std::lock_guard lock(mutex_);
  return !outcome_.ok();
}

std::string AsyncCheckpoint::last_saved() {
  const std::lock_guard lock(mutex_);
  return last_saved_;
}

Result<std::string> AsyncCheckpoint::finish() {
  if (thread_.joinable()) thread_.join();
  return std::exchange(outcome_, std::string());
}

}  // namespace stormo::checkpoint
