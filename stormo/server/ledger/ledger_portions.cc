// The ledger of a run whose steps are divided into portions. A portion is one word, which is
// changed by compare-and-swap; what a worker does with it, protocol/server/portions.h says.
#include <algorithm>
#include <array>
#include <chrono>
#include <string>

#include <stormo/protocol/server/portions.h>
#include <stormo/protocol/server/shard_state.h>
#include <stormo/server/ledger/shared_ledger.h>

namespace stormo::server {
namespace {

using protocol::PortionState;

/// Share of the newest duration in the mean of them.
constexpr double kNewest = 1.0 / 8;

TimePoint now() { return std::chrono::steady_clock::now(); }

/// Changes the state as long as `change` wants it. False if it does not.
template <class Change>
bool change_state(std::atomic<std::uint64_t>& word, const Change& change) {
  std::uint64_t seen = word.load();
  for (;;) {
    PortionState state = PortionState::unpack(seen);
    if (!change(state)) return false;
    if (word.compare_exchange_weak(seen, state.pack())) return true;
  }
}

}  // namespace

void SharedLedger::begin_portions(const Terms& terms) {
  head().step = terms.first_step;
  for (int p = 0; p < terms.portions; ++p) {
    portion(p).state = PortionState{.batch = static_cast<std::uint32_t>(terms.first_step)}.pack();
  }
  head().portions = terms.portions;
}

Ledger::Turn SharedLedger::next_portion() {
  const auto step = static_cast<std::uint32_t>(head().step.load());
  const Duration usual(head().usual_ns.load(std::memory_order_relaxed));
  protocol::PortionChoice choice;
  std::optional<StepTask> task;
  while (head().stop_signal.load() == 0 && step < head().steps.load()) {
    std::array<protocol::PortionView, protocol::kMaxPortions> all;
    const auto count = static_cast<std::size_t>(head().portions.load());
    for (std::size_t p = 0; p < count; ++p) {
      const Portion& from = portion(static_cast<int>(p));
      all[p] = {.state = PortionState::unpack(from.state.load()),
                .begun = TimePoint(Duration(from.begun_ns.load(std::memory_order_relaxed)))};
    }
    choice = protocol::choose_portion(std::span(all).first(count), step, worker_, now(), usual);
    if (!choice.portion) break;
    const std::size_t p = *choice.portion;
    std::uint64_t seen = all[p].state.pack();
    Portion& to = portion(static_cast<int>(p));
    if (!to.state.compare_exchange_strong(seen, protocol::taken(all[p].state, worker_).pack())) {
      continue;
    }
    portion_begun_ = now();
    if (all[p].state.first < 0) to.begun_ns.store(portion_begun_.time_since_epoch().count());
    task = StepTask{.part = static_cast<int>(p), .step = step};
    entry(worker_).doing = pack(*task);
    break;
  }
  Turn out = turn();
  out.task = task;
  if (choice.again) out.again = std::max(*choice.again - now(), Duration(1));
  return out;
}

bool SharedLedger::finish_portion(bool is_computed) {
  const std::uint64_t doing = entry(worker_).doing.load();
  if (doing == 0) return false;
  const StepTask task = unpack(doing);
  const bool has_changed = change_state(portion(task.part).state, [&](PortionState& state) {
    if (state.batch != static_cast<std::uint32_t>(task.step)) return false;
    state = is_computed ? protocol::done(state) : protocol::given_up(state, worker_);
    return true;
  });
  if (!has_changed || !is_computed) return false;
  const auto usual = static_cast<double>(head().usual_ns.load(std::memory_order_relaxed));
  const auto took = static_cast<double>((now() - portion_begun_).count());
  head().usual_ns.store(
      static_cast<std::int64_t>(usual == 0 ? took : usual + kNewest * (took - usual)),
      std::memory_order_relaxed);
  return true;
}

/// Others may take what the worker has in hand.
void SharedLedger::give_up_portions() {
  for (int p = 0; p < head().portions.load(); ++p) {
    change_state(portion(p).state, [this](PortionState& state) {
      const PortionState without = protocol::given_up(state, worker_);
      return std::exchange(state, without) != without;
    });
  }
}

void SharedLedger::add_portions(Turn& turn) const {
  turn.position = head().step.load();
  turn.all_done = turn.position >= head().steps.load();
  turn.ends_share = true;
  turn.is_computed = !turn.all_done;
  for (int p = 0; p < head().portions.load() && turn.is_computed; ++p) {
    turn.is_computed = PortionState::unpack(portion(p).state.load()).batch > turn.position;
  }
}

Status SharedLedger::advance(std::uint64_t step) {
  STORMO_RETURN_IF_ERROR(status_());
  if (!has_portions() || step < head().step.load() || step > head().steps.load()) {
    return invalid_argument("the next step is " + std::to_string(step) +
                            ", which does not follow step " + std::to_string(head().step.load()) +
                            " of a run with portions");
  }
  head().step = step;
  head().bell.ring();
  return {};
}

}  // namespace stormo::server
