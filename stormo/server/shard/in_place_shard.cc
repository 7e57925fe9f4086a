#include <stormo/server/shard/in_place_shard.h>

#include <algorithm>
#include <new>
#include <utility>

#include <stormo/base/check.h>
#include <stormo/server/aligned.h>
#include <stormo/server/shard/shard_update.h>

namespace stormo::server {

using protocol::PushAction;
using protocol::PushDecision;
using protocol::ShardState;
using protocol::WorkerState;

namespace {

/// Elements of a push that are loaded, updated and stored together. More cost less for each, and
/// lose more of what others write meanwhile.
constexpr std::size_t kBlock = 256;

template <class T>
T load_cell(T& from) {
  return std::atomic_ref(from).load(std::memory_order_relaxed);
}
template <class T>
void store(T& to, T value) {
  std::atomic_ref(to).store(value, std::memory_order_relaxed);
}
/// For a word that one thread alone writes.
void add(std::atomic<std::uint64_t>& to, std::uint64_t value) {
  to.store(to.load(std::memory_order_relaxed) + value, std::memory_order_relaxed);
}

template <class T>
void store_all(std::byte* to, const std::byte* from, std::int64_t count) {
  if (from == nullptr) return;
  for (std::int64_t i = 0; i < count; ++i) {
    store(reinterpret_cast<T*>(to)[i], reinterpret_cast<const T*>(from)[i]);
  }
}

/// Collects elements with their gradients, and updates them a block at a time. The rule is that of
/// optim::update(), so the bits are those of every other optimizer.
template <class T>
class InPlaceUpdate {
 public:
  InPlaceUpdate(const optim::Options& options, optim::UpdateStep step, const PieceArrays& arrays,
                std::size_t slots)
      : options_(options), step_(step), arrays_(arrays), slots_(slots) {}

  /// Elements [first, first + count) of the piece, which have not been added yet.
  void add(std::int64_t first, std::int64_t count, const T* gradient) {
    while (count > 0) {
      const std::int64_t part = std::min(count, static_cast<std::int64_t>(kBlock - count_));
      for (std::int64_t i = 0; i < part; ++i, ++count_) {
        places_[count_] = first + i;
        gradient_[count_] = gradient[i];
        weights_[count_] = load_cell(element(arrays_.weights, first + i));
        for (std::size_t s = 0; s < slots_; ++s) {
          slot_values_[s][count_] = load_cell(element(arrays_.slots[s], first + i));
        }
      }
      first += part;
      gradient += part;
      count -= part;
      if (count_ == kBlock) finish();
    }
  }

  /// Updates what was added since the last time.
  void finish() {
    if (count_ == 0) return;
    const optim::GradientTerm term{.data = gradient_.data()};
    optim::UpdateRange range{.begin = 0,
                             .end = static_cast<std::int64_t>(count_),
                             .dtype = kType,
                             .weights = weights_.data(),
                             .gradients = {&term, 1},
                             .gradient_dtype = kType};
    for (std::size_t s = 0; s < slots_; ++s) range.slots[s] = slot_values_[s].data();
    optim::update(options_, step_, range);
    for (std::size_t i = 0; i < count_; ++i) {
      store(element(arrays_.weights, places_[i]), weights_[i]);
      for (std::size_t s = 0; s < slots_; ++s) {
        store(element(arrays_.slots[s], places_[i]), slot_values_[s][i]);
      }
    }
    count_ = 0;
  }

 private:
  static constexpr DType kType = std::is_same_v<T, float> ? DType::kFloat32 : DType::kFloat64;
  static T& element(std::byte* array, std::int64_t i) { return reinterpret_cast<T*>(array)[i]; }

  const optim::Options& options_;
  optim::UpdateStep step_;
  const PieceArrays& arrays_;
  std::size_t slots_;
  std::size_t count_ = 0;
  std::array<std::int64_t, kBlock> places_;
  alignas(64) std::array<T, kBlock> gradient_;
  alignas(64) std::array<T, kBlock> weights_;
  std::array<std::array<T, kBlock>, optim::kMaxSlots> slot_values_;
};

template <class T>
void update_as(InPlaceUpdate<T>&& update, const ShardPiece& piece, const PushedPiece& gradient) {
  if (gradient.array != nullptr) {
    update.add(0, piece.elements(), static_cast<const T*>(gradient.array));
  } else {
    const GradientRows& rows = gradient.rows;
    const T* values = static_cast<const T*>(rows.values);
    for (const std::int64_t row : rows.indices) {
      update.add(row * rows.row_length, rows.row_length, values);
      values += rows.row_length;
    }
  }
  update.finish();
}

}  // namespace

Status InPlaceShard::check(const ShardOptions& options) {
  if (options.policy->name() != "async" || options.policy->delay_compensation().lambda != 0) {
    return invalid_argument(
        "updates in place go with policy async and without delay compensation: others need to know "
        "which version a worker has read, and there is none; use updates = \"versions\"");
  }
  if (!optim::leaves_rest_alone(options.optimizer)) {
    return invalid_argument(
        "updates in place need a rule that leaves elements without a gradient alone; use sgd "
        "without momentum or adagrad, without weight decay, or updates = \"versions\"");
  }
  return {};
}

InPlaceShard::InPlaceShard(std::vector<ShardPiece> pieces, ShardOptions options, int worker)
    : pieces_(std::move(pieces)),
      options_(std::move(options)),
      worker_(worker),
      slot_count_(optim::slot_names(options_.optimizer).size()),
      seen_(options_.workers) {
  STORMO_CHECK(check(options_).ok(), "options that InPlaceShard::check() refuses");
  for (const ShardPiece& piece : pieces_) {
    offsets_.push_back(array_bytes_);
    array_bytes_ += aligned(piece.bytes(), kLine);
  }
  updates_ = sizeof(Header) + static_cast<std::size_t>(options_.workers) * sizeof(Cell);
  arrays_ = aligned(updates_ + pieces_.size() * sizeof(std::int64_t), kPage);
  bytes_ = aligned(arrays_ + (1 + slot_count_) * array_bytes_, kPage);
}

void InPlaceShard::create(std::byte* memory) {
  memory_ = memory;
  std::fill_n(memory, bytes_, std::byte{0});
  new (memory) Header;
  for (int w = 0; w < options_.workers; ++w) new (&cell(w)) Cell;
}

std::atomic_ref<std::int64_t> InPlaceShard::first_updates(std::size_t piece) const {
  return std::atomic_ref(reinterpret_cast<std::int64_t*>(memory_ + updates_)[piece]);
}

PieceArrays InPlaceShard::arrays(std::size_t piece) const {
  PieceArrays out;
  std::byte* at = memory_ + arrays_ + offsets_[piece];
  out.weights = at;
  for (std::size_t s = 0; s < slot_count_; ++s) out.slots[s] = at + (s + 1) * array_bytes_;
  return out;
}

Status InPlaceShard::set(std::size_t piece, const PieceArrays& values) {
  const PieceArrays own = arrays(piece);
  const ShardPiece& at = pieces_[piece];
  const auto set_array = [&at](std::byte* to, const std::byte* from) {
    at.dtype == DType::kFloat32 ? store_all<float>(to, from, at.elements())
                                : store_all<double>(to, from, at.elements());
  };
  set_array(own.weights, values.weights);
  for (std::size_t s = 0; s < slot_count_; ++s) set_array(own.slots[s], values.slots[s]);
  first_updates(piece).store(values.updates, std::memory_order_relaxed);
  return {};
}

Shard::View InPlaceShard::view(std::uint64_t version) const {
  View out{.version = version, .commit = version, .pieces = {}};
  for (std::size_t i = 0; i < pieces_.size(); ++i) out.pieces.push_back(arrays(i).weights);
  return out;
}

Result<Shard::View> InPlaceShard::read(Deadline /*by*/) {
  const std::uint64_t version = header().version.load(std::memory_order_acquire);
  Cell& own = cell(worker_);
  own.version_read.store(version, std::memory_order_relaxed);
  add(own.reads, 1);
  return view(version);
}

Result<Shard::View> InPlaceShard::look() {
  return view(header().version.load(std::memory_order_acquire));
}

Result<Shard::View> InPlaceShard::save(
    const std::function<void(std::size_t piece, const PieceArrays&)>& copy) {
  const std::uint64_t version = header().version.load(std::memory_order_acquire);
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    PieceArrays live = arrays(i);
    live.updates =
        first_updates(i).load(std::memory_order_relaxed) + static_cast<std::int64_t>(version);
    copy(i, live);
  }
  return view(version);
}

void InPlaceShard::update(std::size_t piece, const PushedGradient& gradient, double lr) const {
  const PushedPiece given = gradient.piece(piece);
  if (given.array == nullptr && given.rows.row_length == 0) return;
  const PieceArrays own = arrays(piece);
  const ShardPiece& at = pieces_[piece];
  const optim::Options& rule = options_.optimizer;
  const optim::UpdateStep step{.lr = lr, .gradient_scale = gradient.gradient_scale};
  at.dtype == DType::kFloat32
      ? update_as(InPlaceUpdate<float>(rule, step, own, slot_count_), at, given)
      : update_as(InPlaceUpdate<double>(rule, step, own, slot_count_), at, given);
}

Result<Shard::Pushed> InPlaceShard::push(const PushedGradient& gradient, Deadline /*by*/) {
  STORMO_RETURN_IF_ERROR(check_rows(pieces_, gradient));
  const Cell& own = cell(worker_);
  seen_.version = header().version.load(std::memory_order_relaxed);
  seen_.worker(worker_).pushes = own.pushes.load(std::memory_order_relaxed);
  seen_.worker(worker_).version_read = own.version_read.load(std::memory_order_relaxed);
  const protocol::Push push{
      .worker = worker_, .sequence = gradient.sequence, .weight = gradient.weight};
  STORMO_ASSIGN_OR_RETURN(const PushDecision decision,
                          protocol::decide(*options_.policy, seen_, push));
  if (decision.action == PushAction::kRepeated) return Pushed{decision};
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    update(i, gradient, gradient.lr * decision.rate_factor);
  }
  note_push(seen_.version, decision.staleness);
  return Pushed{decision, header().version.fetch_add(1, std::memory_order_release) + 1};
}

void InPlaceShard::note_push(std::uint64_t version, std::uint64_t staleness) {
  Cell& own = cell(worker_);
  add(own.pushes, 1);
  own.version_used.store(version, std::memory_order_relaxed);
  add(own.staleness_sum, staleness);
  if (staleness > own.staleness_max.load(std::memory_order_relaxed))
    own.staleness_max.store(staleness, std::memory_order_relaxed);
  add(own.histogram[std::min<std::uint64_t>(staleness, own.histogram.size() - 1)], 1);
}

WorkerState InPlaceShard::worker_state(int worker) const {
  const Cell& from = cell(worker);
  WorkerState out{.reads = from.reads.load(std::memory_order_relaxed),
                  .pushes = from.pushes.load(std::memory_order_relaxed),
                  .version_read = from.version_read.load(std::memory_order_relaxed),
                  .version_used = from.version_used.load(std::memory_order_relaxed),
                  .active = from.active.load(std::memory_order_relaxed)};
  out.staleness.sum = from.staleness_sum.load(std::memory_order_relaxed);
  out.staleness.max = from.staleness_max.load(std::memory_order_relaxed);
  for (std::size_t i = 0; i < from.histogram.size(); ++i) {
    out.staleness.histogram[i] = from.histogram[i].load(std::memory_order_relaxed);
    out.staleness.count += out.staleness.histogram[i];
  }
  return out;
}

Result<ShardState> InPlaceShard::state() const {
  ShardState out(options_.workers);
  out.version = header().version.load(std::memory_order_acquire);
  for (int w = 0; w < options_.workers; ++w) out.worker(w) = worker_state(w);
  return out;
}

Result<Shard::Pushed> InPlaceShard::elastic_average(std::span<void* const> /*own*/,
                                                    double /*alpha*/, std::uint64_t /*sequence*/,
                                                    Deadline /*by*/) {
  return invalid_argument(
      "an exchange with a shard that changes in place: what one gains the other would not lose; "
      "use updates = \"versions\"");
}

Result<std::uint64_t> InPlaceShard::leave(double /*lr*/) {
  cell(worker_).active.store(false, std::memory_order_relaxed);
  return header().version.load(std::memory_order_relaxed);
}

Result<Shard::Joined> InPlaceShard::join() {
  STORMO_ASSIGN_OR_RETURN(ShardState now, state());
  protocol::join(now, worker_);
  const WorkerState& joined = now.worker(worker_);
  Cell& own = cell(worker_);
  own.pushes.store(joined.pushes, std::memory_order_relaxed);
  own.reads.store(joined.reads, std::memory_order_relaxed);
  own.active.store(true, std::memory_order_relaxed);
  return Joined{joined.pushes, now.version};
}

}  // namespace stormo::server
