#include <stormo/server/shard/shared_shard.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace stormo::server {

using protocol::PushAction;
using protocol::PushDecision;
using protocol::ShardState;

namespace {

constexpr unsigned kOwnerShift = ShardMemory::kOwnerShift;

bool updates(const PushDecision& decision) {
  return decision.action == PushAction::kUpdate || decision.action == PushAction::kAddAndUpdate;
}

ChangedRange whole_piece(std::span<const ShardPiece> pieces, std::size_t piece) {
  return {.piece = piece, .begin = 0, .end = pieces[piece].elements()};
}

}  // namespace

SharedShard::SharedShard(std::vector<ShardPiece> pieces, ShardOptions options, int worker,
                         ShardWait wait)
    : options_(std::move(options)),
      worker_(worker),
      wait_(std::move(wait)),
      memory_(std::move(pieces), options_.workers, options_.optimizer,
              options_.policy->delay_compensation().is_adaptive) {}

void SharedShard::create(std::byte* memory) {
  memory_.attach(memory);
  memory_.initialise();
}

PieceArrays SharedShard::values(std::size_t piece) const {
  return memory_.arrays(Commit::unpack(memory_.header().commit.load()), piece);
}

Status SharedShard::set(std::size_t piece, const PieceArrays& values) {
  STORMO_RETURN_IF_ERROR(status());
  const Commit current = Commit::unpack(memory_.header().commit.load());
  const PieceArrays own = memory_.arrays(current, piece);
  const std::size_t bytes = pieces()[piece].bytes();
  if (values.weights != nullptr) std::memcpy(own.weights, values.weights, bytes);
  for (std::size_t s = 0; s < memory_.slots(); ++s) {
    if (values.slots[s] != nullptr) std::memcpy(own.slots[s], values.slots[s], bytes);
  }
  if (values.mean_square != nullptr && own.mean_square != nullptr) {
    std::memcpy(own.mean_square, values.mean_square, bytes);
  }
  for (std::size_t v = 0; v < values.vectors.size(); ++v) {
    const std::byte* from = values.vectors[v];
    if (from != nullptr) std::memcpy(memory_.vector(v + 1, piece), from, bytes);
  }
  memory_.set_updates(current.slots, piece, values.updates);
  return {};
}

// The pin is seen by every writer that chooses a copy after it; if the version is still current
// then, no writer has chosen this copy before.
Shard::View SharedShard::pin() {
  ShardMemory::Header& header = memory_.header();
  std::uint64_t word = header.commit.load(std::memory_order_seq_cst);
  for (;;) {
    const unsigned weights = Commit::unpack(word).weights;
    memory_.cell(worker_).pin.store(weights + 1, std::memory_order_seq_cst);
    const std::uint64_t again = header.commit.load(std::memory_order_seq_cst);
    word = again;
    if (Commit::unpack(again).weights == weights) break;
  }
  return view_of(Commit::unpack(word));
}

Shard::View SharedShard::view_of(const Commit& commit) const {
  View view{.version = memory_.version_of(commit.weights).load(std::memory_order_acquire),
            .commit = commit.count,
            .pieces = {}};
  for (std::size_t i = 0; i < pieces().size(); ++i) {
    view.pieces.push_back(memory_.weights(commit.weights, i));
  }
  return view;
}

Status SharedShard::wait_to_read(Deadline by) const {
  for (;;) {
    const std::uint32_t seen = memory_.header().bell.load();
    STORMO_ASSIGN_OR_RETURN(const bool may,
                            protocol::may_read(*options_.policy, memory_.state(), worker_));
    if (may) return {};
    STORMO_RETURN_IF_ERROR(wait_for_change(seen, by));
  }
}

Result<Shard::View> SharedShard::read(Deadline by) {
  STORMO_RETURN_IF_ERROR(status());
  STORMO_RETURN_IF_ERROR(wait_to_read(by));
  View view = pin();
  ShardMemory::Cell& cell = memory_.cell(worker_);
  cell.version_read.store(view.version, std::memory_order_release);
  cell.reads.fetch_add(1, std::memory_order_release);
  memory_.header().bell.ring();  // a push may wait for this read
  return view;
}

Result<Shard::View> SharedShard::look() {
  STORMO_RETURN_IF_ERROR(status());
  return pin();
}

Result<ShardState> SharedShard::state() const {
  STORMO_RETURN_IF_ERROR(status());
  return memory_.state();
}

Status SharedShard::wait_for_change(std::uint32_t seen, Deadline by) const {
  // with others at work the bell rings all the time, and no wait would reach its deadline
  if (by.expired()) {
    return Status(Code::kDeadlineExceeded, "the server shard did not let the worker go on in time");
  }
  // who dies between a change and its bell must not leave others asleep
  const Deadline look_again =
      Deadline::at(std::min(by.when(), Deadline::after(wait_.patience).when()));
  const Status status =
      transport::wait_for(memory_.header().bell, seen + 1,
                          {.policy = wait_.policy, .health = healthy_, .by = look_again});
  if (status.code() != Code::kDeadlineExceeded || by.expired()) return status;
  return this->status();
}

// One writer at a time, so that no work is done in vain. Correctness does not depend on it: a
// writer that lost its lease fails to commit.
Result<ShardMemory::Lease> SharedShard::acquire(Deadline by, Duration patience) {
  ShardMemory::Header& header = memory_.header();
  const std::uint64_t owner = static_cast<std::uint64_t>(worker_ + 1) << kOwnerShift;
  std::uint64_t held = header.lease.load(), progress = header.progress.load();
  TimePoint since = std::chrono::steady_clock::now();
  for (;;) {
    const std::uint32_t seen = header.bell.load();
    std::uint64_t now = header.lease.load();
    const std::uint64_t blocks = header.progress.load(std::memory_order_relaxed);
    const TimePoint time = std::chrono::steady_clock::now();
    if (now != held || blocks != progress) {
      held = now;
      progress = blocks;
      since = time;
    }
    const bool free = now >> kOwnerShift == 0;
    const std::uint64_t mine = owner | ((now + 1) & ShardMemory::kLeaseNumber);
    if ((free || time - since >= patience) && header.lease.compare_exchange_strong(now, mine)) {
      Lease lease{.word = mine};
      lease.state = memory_.state(&lease.from);
      const bool is_room = memory_.find_free(worker_, lease.from, lease.free);
      if (is_room) memory_.cell(worker_).writes.store(lease.free.pack(), std::memory_order_seq_cst);
      // Whoever takes the lease later sees what is written here; whoever has taken it may not. A
      // writer without the lease may have been done just now: then the copies that it no longer
      // announces are current, and look free here.
      if (is_room && header.lease.load(std::memory_order_seq_cst) == mine &&
          header.commit.load(std::memory_order_seq_cst) == lease.from.pack()) {
        lease.to = lease.from;
        lease.to.state = lease.free.state;
        return lease;
      }
      memory_.release(worker_, lease);
    }
    STORMO_RETURN_IF_ERROR(wait_for_change(seen, by));
  }
}

// Under the lease the current copies are marked as used; then others go on with other copies.
Result<ShardMemory::Lease> SharedShard::use_current_copies() {
  for (;;) {
    STORMO_ASSIGN_OR_RETURN(Lease lease, acquire(Deadline::never(), wait_.patience));
    Commit used = lease.from;
    used.count = 1;
    memory_.cell(worker_).writes.store(used.pack(), std::memory_order_seq_cst);
    if (memory_.header().lease.load(std::memory_order_seq_cst) == lease.word) {
      memory_.release(worker_, lease, /*holds_copies=*/true);
      return lease;
    }
    memory_.release(worker_, lease);
  }
}

Result<Shard::View> SharedShard::save(
    const std::function<void(std::size_t piece, const PieceArrays&)>& copy) {
  STORMO_RETURN_IF_ERROR(status());
  STORMO_ASSIGN_OR_RETURN(const Lease held, use_current_copies());
  memory_.cell(worker_).pin.store(held.from.weights + 1, std::memory_order_seq_cst);
  for (std::size_t i = 0; i < pieces().size(); ++i) {
    PieceArrays arrays = memory_.arrays(held.from, i);
    for (std::size_t v = 1; v <= memory_.vectors(); ++v) {
      arrays.vectors.push_back(memory_.vector(v, i));
    }
    copy(i, arrays);
  }
  memory_.release(worker_, held);
  return view_of(held.from);
}

Result<PushDecision> SharedShard::wait_for_decision(const protocol::Push& push, Deadline by) const {
  for (;;) {
    const std::uint32_t seen = memory_.header().bell.load();
    STORMO_ASSIGN_OR_RETURN(const PushDecision decision,
                            protocol::decide(*options_.policy, memory_.state(), push));
    if (decision.action != PushAction::kWait) return decision;
    STORMO_RETURN_IF_ERROR(wait_for_change(seen, by));
  }
}

Status SharedShard::wait_to_push(std::uint64_t sequence, Deadline by) const {
  return wait_for_decision({.worker = worker_, .sequence = sequence}, by).status();
}

Result<Shard::Pushed> SharedShard::push(const PushedGradient& gradient, Deadline by) {
  STORMO_RETURN_IF_ERROR(status());
  STORMO_RETURN_IF_ERROR(check_rows(pieces(), gradient));
  const protocol::Push push{.worker = worker_,
                            .sequence = gradient.sequence,
                            .weight = gradient.weight,
                            .loss_sum = gradient.loss_sum,
                            .portion = gradient.portion,
                            .batch = gradient.batch};
  const protocol::Policy& policy = *options_.policy;
  for (;;) {
    STORMO_ASSIGN_OR_RETURN(PushDecision decision, wait_for_decision(push, by));
    if (decision.action == PushAction::kRepeated) return Pushed{decision};
    STORMO_ASSIGN_OR_RETURN(Lease lease, acquire(by, wait_.patience));
    Result<PushDecision> under_lease = protocol::decide(policy, lease.state, push);
    if (!under_lease.ok()) {
      memory_.release(worker_, lease);  // it was taken for lost meanwhile
      return under_lease.status();
    }
    decision = *under_lease;
    if (decision.action == PushAction::kWait || decision.action == PushAction::kRepeated) {
      memory_.release(worker_, lease);
      continue;
    }
    memory_.header().lr.store(gradient.lr, std::memory_order_relaxed);
    if (decision.action != PushAction::kDrop) {
      // pending gradients change the weights of the next version, as those that are used at once do
      memory_.changes().note(gradient, optim::leaves_rest_alone(options_.optimizer),
                             lease.state.version + 1);
    }
    if (decision.action == PushAction::kAdd) add_to_sums(lease, gradient, decision);
    if (updates(decision)) update_all(lease, gradient, decision);
    protocol::note_push(lease.state, push, decision);
    const Status holds = policy.invariant(lease.state);
    if (!holds.ok()) {
      memory_.release(worker_, lease);
      return holds;
    }
    if (memory_.commit(worker_, lease)) return Pushed{decision, lease.to.count};
  }
}

Progress SharedShard::progress() const {
  return [this] { memory_.header().progress.fetch_add(1, std::memory_order_relaxed); };
}

void SharedShard::add_to_sums(Lease& lease, const PushedGradient& gradient,
                              const PushDecision& decision) {
  lease.to.sums = lease.free.sums;
  const double scale = gradient.weight * gradient.gradient_scale * decision.gradient_factor;
  for (std::size_t i = 0; i < pieces().size(); ++i) {
    const ChangedRange whole = whole_piece(pieces(), i);
    write_sum(lease, gradient, i, std::span(&whole, 1), lease.state.pending > 0, scale);
  }
}

void SharedShard::write_sum(const Lease& lease, const PushedGradient& gradient, std::size_t piece,
                            std::span<const ChangedRange> ranges, bool has_before, double scale) {
  std::array<optim::GradientTerm, kMaxTerms> terms;
  std::size_t count = 0;
  if (has_before && memory_.has_sum(lease.from.sums, piece)) {
    terms[count++] = {.data = memory_.sum(lease.from.sums, piece), .scale = 1};
  }
  const auto [array, rows, is_sent] = gradient.piece(piece);
  if (array != nullptr) terms[count++] = {.data = array, .scale = scale};
  const bool has_rows = rows.row_length > 0;
  std::byte* const to = memory_.sum(lease.free.sums, piece);
  memory_.has_sum(lease.free.sums, piece) = count > 0 || has_rows;
  if (count > 0) {
    add_piece(pieces()[piece], std::span(terms).first(count), to, progress());
  } else if (has_rows) {
    clear_piece(pieces()[piece], ranges, to, progress());
  }
  if (has_rows) add_rows(pieces()[piece], rows, scale, to, progress());
}

// The gradient is that of the push alone, or the average of it and the pending ones.
void SharedShard::update_all(Lease& lease, const PushedGradient& gradient,
                             const PushDecision& decision) {
  if (options_.policy->replaces()) return replace_all(lease, gradient);
  const bool averages = decision.action == PushAction::kAddAndUpdate;
  const double whole = averages ? lease.state.pending_weight + gradient.weight : 1;
  const auto share = [whole](double weight) { return whole > 0 ? weight / whole : 0; };
  const std::uint32_t pin = memory_.cell(worker_).pin.load(std::memory_order_relaxed);
  const protocol::DelayCompensation delay =
      pin == 0 ? protocol::DelayCompensation{} : options_.policy->delay_compensation();
  const std::optional<std::uint64_t> held = memory_.start_writing(lease.free);
  lease.to.weights = lease.free.weights;
  lease.to.slots = lease.free.slots;
  // nothing else changes than what was noted, but for a mean square, which decays everywhere
  const bool only_changes = held && !averages && !has_mean_square();
  std::vector<ChangedRange> changed;
  if (only_changes) changed = memory_.changes().since(*held);
  for (std::size_t i = 0; i < pieces().size(); ++i) {
    const ChangedRange all = whole_piece(pieces(), i);
    std::span<const ChangedRange> ranges(&all, 1);
    if (only_changes) ranges = std::ranges::equal_range(changed, i, {}, &ChangedRange::piece);
    std::array<optim::GradientTerm, kMaxTerms> terms;
    std::size_t count = 0;
    const bool has_pending = averages && lease.state.pending > 0;
    const auto scale_of = [&](double weight) {
      return weight * gradient.gradient_scale * decision.gradient_factor;
    };
    const PushedPiece given = gradient.piece(i);
    if (given.rows.row_length > 0) {
      // added up in a copy of the sums that nobody uses
      write_sum(lease, gradient, i, ranges, has_pending, scale_of(averages ? gradient.weight : 1));
      terms[count++] = {.data = memory_.sum(lease.free.sums, i), .scale = averages ? share(1) : 1};
    } else {
      if (has_pending && memory_.has_sum(lease.from.sums, i)) {
        terms[count++] = {.data = memory_.sum(lease.from.sums, i), .scale = share(1)};
      }
      if (given.array != nullptr) {
        const double scale = scale_of(averages ? share(gradient.weight) : 1);
        terms[count++] = {.data = given.array, .scale = scale};
      }
    }
    const PieceGradient of_piece{.terms = std::span(terms).first(count),
                                 .delay = delay,
                                 .pulled = pin == 0 ? nullptr : memory_.weights(pin - 1, i)};
    PieceArrays to = memory_.arrays(lease.to, i);
    update_piece(options_.optimizer, {.lr = gradient.lr * decision.rate_factor}, pieces()[i],
                 of_piece, ranges, memory_.arrays(lease.from, i), to, progress());
    memory_.set_updates(lease.to.slots, i, to.updates);
  }
}

// The sum first, in a copy that nobody uses, and then its factor: so the bits are those of ranks
// that do the same. Where nobody had a sample the values stay.
void SharedShard::replace_all(Lease& lease, const PushedGradient& values) {
  const double whole = lease.state.pending_weight + values.weight;
  memory_.start_writing(lease.free);
  lease.to.weights = lease.free.weights;
  for (std::size_t i = 0; i < pieces().size(); ++i) {
    const ChangedRange range = whole_piece(pieces(), i);
    write_sum(lease, values, i, std::span(&range, 1), lease.state.pending > 0, values.weight);
    optim::GradientTerm mean{.data = memory_.weights(lease.from.weights, i), .scale = 1};
    if (whole > 0 && memory_.has_sum(lease.free.sums, i)) {
      mean = {.data = memory_.sum(lease.free.sums, i), .scale = 1 / whole};
    }
    add_piece(pieces()[i], std::span(&mean, 1), memory_.weights(lease.to.weights, i), progress());
  }
}

void SharedShard::release_copies(int worker) {
  memory_.cell(worker).pin.store(0);
  memory_.cell(worker).writes.store(0);
  memory_.header().bell.ring();
}

Result<std::uint64_t> SharedShard::evict(int worker, Deadline by) {
  return remove(worker, memory_.header().lr.load(std::memory_order_relaxed), by);
}

Result<std::uint64_t> SharedShard::leave(double lr) {
  STORMO_RETURN_IF_ERROR(status());
  return remove(worker_, lr, Deadline::never());
}

// Others that push all the time would keep the lease from a server: it takes it, and who had it
// begins again.
Result<std::uint64_t> SharedShard::remove(int worker, double lr, Deadline by) {
  const Duration patience = worker == worker_ ? wait_.patience : Duration::zero();
  for (;;) {
    STORMO_ASSIGN_OR_RETURN(Lease lease, acquire(by, patience));
    if (protocol::leave(*options_.policy, lease.state, worker)) {
      const PushDecision decision{.action = PushAction::kAddAndUpdate};
      update_all(lease, {.pieces = {}, .lr = lr, .weight = 0}, decision);
      protocol::note_update(lease.state);
    }
    if (memory_.commit(worker_, lease)) return lease.to.count;
  }
}

Result<Shard::Joined> SharedShard::join() {
  STORMO_RETURN_IF_ERROR(status());
  for (;;) {
    STORMO_ASSIGN_OR_RETURN(Lease lease, acquire(Deadline::never(), wait_.patience));
    protocol::join(lease.state, worker_);
    memory_.cell(worker_).reads.store(lease.state.worker(worker_).reads, std::memory_order_release);
    const std::uint64_t next = lease.state.worker(worker_).pushes;
    if (memory_.commit(worker_, lease)) return Joined{next, lease.to.count};
  }
}

}  // namespace stormo::server
