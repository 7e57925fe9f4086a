#include <stormo/server/shard/shard_memory.h>

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <type_traits>

#include <stormo/optim/lbfgs.h>
#include <stormo/server/aligned.h>

namespace stormo::server {
namespace {

using protocol::ShardState;
using protocol::WorkerState;

constexpr std::uint64_t kUnknown = ~std::uint64_t{0};  // which version a copy holds
constexpr unsigned kWeightBits = 12, kCopyBits = 4;

/// A ShardState without its list of workers, which follows it in memory.
struct StateHead {
  std::uint64_t version = 0;
  std::int64_t pending = 0;
  double pending_weight = 0, pending_loss = 0;
  decltype(ShardState::counted) counted{};
};
static_assert(std::is_trivially_copyable_v<WorkerState> && sizeof(WorkerState) % 8 == 0);

// A state may be overwritten while it is read, by a writer that lost its lease; the reader then
// sees that it is not current. So all accesses are atomic.
void store_words(std::byte* to, const void* from, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; i += 8) {
    std::uint64_t word;
    std::memcpy(&word, static_cast<const std::byte*>(from) + i, 8);
    std::atomic_ref(*reinterpret_cast<std::uint64_t*>(to + i))
        .store(word, std::memory_order_release);
  }
}
void load_words(void* to, std::byte* from, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; i += 8) {
    const std::uint64_t word = std::atomic_ref(*reinterpret_cast<std::uint64_t*>(from + i))
                                   .load(std::memory_order_acquire);
    std::memcpy(static_cast<std::byte*>(to) + i, &word, 8);
  }
}

/// The first number of a pool that is not used; its size if all are.
unsigned first_free(const std::vector<bool>& used) {
  return static_cast<unsigned>(std::ranges::find(used, false) - used.begin());
}

}  // namespace

Commit Commit::unpack(std::uint64_t word) {
  const auto take = [&word](unsigned bits) {
    const auto value = static_cast<unsigned>(word & ((1u << bits) - 1));
    word >>= bits;
    return value;
  };
  Commit commit;
  commit.weights = take(kWeightBits);
  commit.slots = take(kCopyBits);
  commit.sums = take(kCopyBits);
  commit.state = take(kCopyBits);
  commit.count = word;
  return commit;
}

std::uint64_t Commit::pack() const {
  std::uint64_t word = count;
  word = word << kCopyBits | state;
  word = word << kCopyBits | sums;
  word = word << kCopyBits | slots;
  return word << kWeightBits | weights;
}

ShardMemory::ShardMemory(std::vector<ShardPiece> pieces, int workers, const optim::Options& options,
                         bool mean_square)
    : pieces_(std::move(pieces)),
      changes_(pieces_),
      workers_(workers),
      slot_count_(optim::slot_names(options).size()),
      has_mean_square_(mean_square),
      vector_count_(optim::Lbfgs::vectors(options)) {
  for (const ShardPiece& piece : pieces_) {
    offsets_.push_back(array_bytes_);
    array_bytes_ += aligned_bytes(piece);
  }
  const auto count = static_cast<unsigned>(workers);
  const unsigned weight_copies = static_cast<unsigned>(cells()) + 1 + kWriters;
  cells_ = aligned(sizeof(Header), kLine);
  versions_ = cells_ + static_cast<std::size_t>(cells()) * sizeof(Cell);
  held_ = versions_ + weight_copies * sizeof(std::uint64_t);
  changes_at_ = held_ + (weight_copies + 1 + kWriters) * sizeof(std::uint64_t);
  bytes_ = changes_at_ + changes_.bytes();
  const std::size_t numbers = aligned(pieces_.size() * sizeof(std::int64_t), kLine);
  states_ = add_pool(sizeof(StateHead) + count * sizeof(WorkerState), 1 + kWriters);
  weights_ = add_pool(array_bytes_, weight_copies);
  // the numbers of updates, or which sums there are, come first
  const std::size_t arrays = slot_count_ + (has_mean_square_ ? 1 : 0);
  slots_ = add_pool(numbers + arrays * array_bytes_, 1 + kWriters);
  sums_ = add_pool(numbers + array_bytes_, 1 + kWriters);
  if (vector_count_ > 0) vectors_ = add_pool(array_bytes_, static_cast<unsigned>(vector_count_));
}

ShardMemory::Pool ShardMemory::add_pool(std::size_t bytes, unsigned copies) {
  const Pool pool{
      .first = aligned(bytes_, kPage), .stride = aligned(bytes, kPage), .copies = copies};
  bytes_ = pool.first + pool.stride * copies;
  return pool;
}

void ShardMemory::initialise() {
  // gives back pages of earlier users; without a memory file there is nothing to give back
  (void)::madvise(memory_, bytes_, MADV_REMOVE);
  new (memory_) Header;
  for (int w = 0; w < cells(); ++w) new (&cell(w)) Cell;
  for (unsigned i = 0; i < weights_.copies; ++i) {
    new (&version_of(i)) std::atomic<std::uint64_t>(0);
    new (&weights_held(i)) std::atomic<std::uint64_t>(i == 0 ? 0 : kUnknown);
  }
  for (unsigned i = 0; i < slots_.copies; ++i) {
    new (&slots_held(i)) std::atomic<std::uint64_t>(i == 0 ? 0 : kUnknown);
  }
  std::memset(copy(weights_, 0), 0, weights_.stride);
  std::memset(copy(slots_, 0), 0, slots_.stride);
  std::memset(copy(sums_, 0), 0, aligned(pieces_.size() * sizeof(std::int64_t), kLine));
  for (unsigned i = 0; i < vectors_.copies; ++i) std::memset(copy(vectors_, i), 0, vectors_.stride);
  changes_.initialise();
  write_state(0, ShardState(workers_));
}

std::atomic<std::uint64_t>& ShardMemory::version_of(unsigned weights) const {
  return at<std::atomic<std::uint64_t>>(versions_)[weights];
}

std::atomic<std::uint64_t>& ShardMemory::weights_held(unsigned number) const {
  return at<std::atomic<std::uint64_t>>(held_)[number];
}

std::atomic<std::uint64_t>& ShardMemory::slots_held(unsigned number) const {
  return at<std::atomic<std::uint64_t>>(held_)[weights_.copies + number];
}

std::optional<std::uint64_t> ShardMemory::start_writing(const Commit& copies) const {
  // no write to the copies may come before: the writer may be killed between the two
  const std::uint64_t weights =
      weights_held(copies.weights).exchange(kUnknown, std::memory_order_seq_cst);
  const std::uint64_t slots =
      slots_held(copies.slots).exchange(kUnknown, std::memory_order_seq_cst);
  if (weights == kUnknown || slots == kUnknown) return std::nullopt;
  return std::min(weights, slots);
}

bool ShardMemory::commit(int worker, Lease& lease) const {
  const Commit& from = lease.from;
  Commit& to = lease.to;
  const std::uint64_t version = lease.state.version;
  write_state(to.state, lease.state);
  if (to.weights != from.weights) version_of(to.weights).store(version, std::memory_order_release);
  to.count = (from.count + 1) & ((std::uint64_t{1} << 40) - 1);
  std::uint64_t expected = from.pack();
  const bool done =
      header().commit.compare_exchange_strong(expected, to.pack(), std::memory_order_seq_cst);
  if (done && to.weights != from.weights) {
    weights_held(to.weights).store(version, std::memory_order_release);
  }
  if (done && to.slots != from.slots) {
    slots_held(to.slots).store(version, std::memory_order_release);
  }
  release(worker, lease);
  return done;
}

void ShardMemory::release(int worker, const Lease& lease, bool holds_copies) const {
  if (!holds_copies) cell(worker).writes.store(0, std::memory_order_seq_cst);
  std::uint64_t mine = lease.word;
  header().lease.compare_exchange_strong(mine, lease.word & kLeaseNumber);
  header().bell.ring();
}

std::byte* ShardMemory::weights(unsigned number, std::size_t piece) const {
  return copy(weights_, number) + offsets_[piece];
}

PieceArrays ShardMemory::arrays(const Commit& which, std::size_t piece) const {
  PieceArrays out;
  out.weights = weights(which.weights, piece);
  std::byte* slots = copy(slots_, which.slots);
  std::memcpy(&out.updates, slots + piece * sizeof(std::int64_t), sizeof(std::int64_t));
  slots += aligned(pieces_.size() * sizeof(std::int64_t), kLine) + offsets_[piece];
  for (std::size_t s = 0; s < slot_count_; ++s) out.slots[s] = slots + s * array_bytes_;
  if (has_mean_square_) out.mean_square = slots + slot_count_ * array_bytes_;
  return out;
}

void ShardMemory::set_updates(unsigned slots, std::size_t piece, std::int64_t updates) const {
  std::memcpy(copy(slots_, slots) + piece * sizeof updates, &updates, sizeof updates);
}

std::byte* ShardMemory::sum(unsigned sums, std::size_t piece) const {
  return copy(sums_, sums) + aligned(pieces_.size() * sizeof(std::int64_t), kLine) +
         offsets_[piece];
}

bool& ShardMemory::has_sum(unsigned sums, std::size_t piece) const {
  return *reinterpret_cast<bool*>(copy(sums_, sums) + piece);
}

std::byte* ShardMemory::vector(std::size_t vector, std::size_t piece) const {
  return copy(vectors_, static_cast<unsigned>(vector - 1)) + offsets_[piece];
}

ShardState ShardMemory::state(Commit* current) const {
  const auto count = static_cast<std::size_t>(workers_);
  ShardState out(workers_);
  for (;;) {
    const std::uint64_t word = header().commit.load(std::memory_order_acquire);
    const Commit now = Commit::unpack(word);
    if (current != nullptr) *current = now;
    std::byte* from = copy(states_, now.state);
    StateHead head;
    load_words(&head, from, sizeof head);
    load_words(out.workers.data(), from + sizeof head, count * sizeof(WorkerState));
    // a word of a later state comes after the commit that freed this copy
    if (header().commit.load(std::memory_order_relaxed) != word) continue;
    out.version = head.version;
    out.pending = head.pending;
    out.pending_weight = head.pending_weight;
    out.pending_loss = head.pending_loss;
    out.counted = head.counted;
    break;
  }
  for (int w = 0; w < workers_; ++w) {
    out.worker(w).reads = cell(w).reads.load(std::memory_order_acquire);
    out.worker(w).version_read = cell(w).version_read.load(std::memory_order_acquire);
  }
  return out;
}

void ShardMemory::write_state(unsigned number, const ShardState& state) const {
  const StateHead head{state.version, state.pending, state.pending_weight, state.pending_loss,
                       state.counted};
  std::byte* to = copy(states_, number);
  store_words(to, &head, sizeof head);
  store_words(to + sizeof head, state.workers.data(), state.workers.size() * sizeof(WorkerState));
}

bool ShardMemory::find_free(int worker, const Commit& current, Commit& free) const {
  std::vector<bool> weights(weights_.copies), slots(slots_.copies), sums(sums_.copies),
      states(states_.copies);
  const auto use = [&](const Commit& c) {
    weights[c.weights] = slots[c.slots] = sums[c.sums] = states[c.state] = true;
  };
  use(current);
  for (int w = 0; w < cells(); ++w) {
    const Cell& other = cell(w);
    // before the pin: what is held becomes pinned before it is let go
    const std::uint64_t writes = other.writes.load(std::memory_order_seq_cst);
    if (w != worker && writes != 0) use(Commit::unpack(writes));
    const std::uint32_t pin = other.pin.load(std::memory_order_seq_cst);
    if (pin != 0) weights[pin - 1] = true;
  }
  free = {.count = 1,
          .weights = first_free(weights),
          .slots = first_free(slots),
          .sums = first_free(sums),
          .state = first_free(states)};
  return free.weights < weights_.copies && free.slots < slots_.copies && free.sums < sums_.copies &&
         free.state < states_.copies;
}

}  // namespace stormo::server
