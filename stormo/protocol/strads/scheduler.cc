#include <stormo/protocol/strads/scheduler.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

namespace stormo::protocol {
namespace {

/// Candidates of a round for each block that it may have: more are drawn than taken, because some
/// are in conflict.
constexpr int kCandidates = 2;

/// Calls `say` for each block of a list that does not exist, or stands there twice.
template <class Say>
void check_list(std::vector<std::int64_t> list, std::int64_t blocks, const Say& say) {
  std::ranges::sort(list);
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::string block = std::to_string(list[i]);
    if (list[i] < 0 || list[i] >= blocks) say("rotation: there is no block " + block);
    if (i > 0 && list[i] == list[i - 1]) say("rotation: block " + block + " is twice in a list");
  }
}

}  // namespace

std::vector<std::vector<std::int64_t>> all_in_turn(std::int64_t blocks, std::int64_t size) {
  std::vector<std::vector<std::int64_t>> rounds;
  for (std::int64_t b = 0; b < blocks; ++b) {
    if (b % size == 0) rounds.emplace_back();
    rounds.back().push_back(b);
  }
  return rounds;
}

Result<Scheduler> Scheduler::make(ScheduleOptions options,
                                  std::shared_ptr<const Conflicts> conflicts) {
  constexpr std::int64_t kMostBlocks = std::numeric_limits<std::int32_t>::max();
  std::string wrong;
  const auto say = [&wrong](const std::string& text) {
    wrong += (wrong.empty() ? "" : "\n") + text;
  };
  const auto need = [&say](bool holds, const char* text) {
    if (!holds) say(text);
  };
  need(options.blocks >= 1 && options.blocks <= kMostBlocks, "blocks: from 1 to 2147483647");
  need(options.round >= 1, "round: at least 1 block");
  need(options.depth >= 0, "depth: at least 0 rounds");
  need(options.base_weight > 0 && options.base_weight <= kMostBlockWeight,
       "base weight: a number greater than 0, else blocks that rest are never drawn again, and at "
       "most 1e100");
  need(options.rotation.empty() || options.depth == 0,
       "depth: a rotation has one round in flight, give 0");
  for (const auto& list : options.rotation) check_list(list, options.blocks, say);
  if (!wrong.empty()) return invalid_argument(wrong);
  return Scheduler(std::move(options), std::move(conflicts));
}

Result<Scheduler> Scheduler::make(ScheduleOptions options,
                                  std::shared_ptr<const Conflicts> conflicts,
                                  const ScheduleState& state) {
  STORMO_ASSIGN_OR_RETURN(Scheduler made, make(std::move(options), std::move(conflicts)));
  const ScheduleOptions& o = made.options_;
  const bool draws_fit = state.draws >= 0 && state.draws / kCandidates / o.round <= state.rounds;
  const bool weights_fit =
      std::ssize(state.weights) == o.blocks &&
      std::ranges::all_of(state.weights, [](double w) { return w >= 0 && std::isfinite(w); });
  if (state.rounds < 0 || !draws_fit || !weights_fit) {
    return invalid_argument("state: it is none of a scheduler with these options");
  }
  for (std::int64_t b = 0; b < o.blocks; ++b) {
    made.weights_.set(b, state.weights[static_cast<std::size_t>(b)]);
  }
  for (; made.draws_ < state.draws; ++made.draws_) (void)made.rng_.uniform();
  made.done_ = state.rounds;
  return made;
}

ScheduleState Scheduler::state() const {
  ScheduleState state{.rounds = done_, .draws = draws_, .weights = {}};
  for (std::int64_t b = 0; b < options_.blocks; ++b) state.weights.push_back(weights_[b]);
  return state;
}

Scheduler::Scheduler(ScheduleOptions options, std::shared_ptr<const Conflicts> conflicts)
    : options_(std::move(options)),
      conflicts_(conflicts ? std::move(conflicts) : std::make_shared<const Conflicts>()),
      weights_(options_.blocks, 1),
      busy_(static_cast<std::size_t>(options_.blocks)),
      rng_(options_.seed, "strads") {}

const std::vector<std::int64_t>& Scheduler::begin() {
  const auto lists = options_.rotation.size();
  in_flight_.push_back(
      lists == 0 ? draw() : options_.rotation[static_cast<std::size_t>(rounds_begun()) % lists]);
  return in_flight_.back();
}

Status Scheduler::end(std::span<const double> changes) {
  if (in_flight_.empty() || in_flight_.front().size() != changes.size()) {
    return invalid_argument("the changes are of no round in flight");
  }
  if (options_.rotation.empty()) give_back(in_flight_.front(), changes);
  in_flight_.pop_front();
  ++done_;
  return {};
}

std::vector<std::int64_t> Scheduler::draw() {
  std::vector<std::int64_t> blocks;
  const std::int64_t candidates =
      kCandidates * std::min<std::int64_t>(options_.round, options_.blocks);
  for (std::int64_t i = 0; i < candidates && std::ssize(blocks) < options_.round; ++i) {
    if (!(weights_.sum() > 0)) break;  // all are in flight
    ++draws_;
    const std::int64_t block = weights_.at(rng_.uniform());
    if (!is_free(block)) continue;
    busy_[static_cast<std::size_t>(block)] = true;
    weights_.set(block, 0);
    blocks.push_back(block);
  }
  return blocks;
}

void Scheduler::give_back(std::span<const std::int64_t> blocks, std::span<const double> changes) {
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const double change = std::abs(changes[i]);
    const double weight =
        std::isnan(change) ? kMostBlockWeight : std::min(change, kMostBlockWeight);
    busy_[static_cast<std::size_t>(blocks[i])] = false;
    weights_.set(blocks[i], options_.priority ? weight + options_.base_weight : 1);
  }
}

bool Scheduler::is_free(std::int64_t block) const {
  return std::ranges::none_of(conflicts_->of_block(block), [this](std::int32_t other) {
    return busy_[static_cast<std::size_t>(other)];
  });
}

}  // namespace stormo::protocol
