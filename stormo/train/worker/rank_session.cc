#include <stormo/train/worker/rank_session.h>

#include <array>
#include <bit>
#include <cstdint>
#include <span>
#include <utility>

namespace stormo::train {
namespace {

using server::Ledger;

/// An answer of the ledger and who is the chief, as the ranks send it: 64-bit numbers.
using TurnNumbers = std::array<std::int64_t, 14>;

TurnNumbers numbers_of(const Ledger::Turn& t, bool is_chief, bool is_over) {
  const server::StepTask task = t.task.value_or(server::StepTask{});
  return {t.task ? 1 : 0,
          task.part,
          static_cast<std::int64_t>(task.step),
          t.ends_share ? 1 : 0,
          t.all_done ? 1 : 0,
          t.stop_signal,
          std::bit_cast<std::int64_t>(t.totals.loss_sum),
          t.totals.samples,
          static_cast<std::int64_t>(t.position),
          t.others,
          t.again.count(),
          t.is_computed ? 1 : 0,
          is_chief ? 1 : 0,
          is_over ? 1 : 0};
}

Ledger::Turn turn_of(const TurnNumbers& n) {
  Ledger::Turn t;
  if (n[0] != 0) {
    t.task = {.part = static_cast<int>(n[1]), .step = static_cast<std::uint64_t>(n[2])};
  }
  t.ends_share = n[3] != 0;
  t.all_done = n[4] != 0;
  t.stop_signal = static_cast<int>(n[5]);
  t.totals = {.loss_sum = std::bit_cast<double>(n[6]), .samples = n[7]};
  t.position = static_cast<std::uint64_t>(n[8]);
  t.others = static_cast<int>(n[9]);
  t.again = Duration(n[10]);
  t.is_computed = n[11] != 0;
  return t;
}

}  // namespace

/// What the first rank tells the servers, it tells for all. wait() is no collective: others wait
/// for the next answer.
class RankSession::RankLedger final : public Ledger {
 public:
  RankLedger(RankSession& session, Ledger* first)
      : session_(session), ranks_(*session.ranks_), first_(first) {}

  Status deal(const Terms& terms) override { return first_ ? first_->deal(terms) : Status(); }

  Result<Terms> terms() override {
    Terms terms;
    if (first_) {
      STORMO_ASSIGN_OR_RETURN(terms, first_->terms());
    }
    std::array<std::int64_t, 5> n{static_cast<std::int64_t>(terms.first_step),
                                  static_cast<std::int64_t>(terms.steps), terms.first_sample,
                                  terms.by_speed ? 1 : 0, terms.portions};
    STORMO_RETURN_IF_ERROR(ranks_.broadcast(std::span<std::int64_t>(n), 0));
    return Terms{.first_step = static_cast<std::uint64_t>(n[0]),
                 .steps = static_cast<std::uint64_t>(n[1]),
                 .first_sample = n[2],
                 .by_speed = n[3] != 0,
                 .portions = static_cast<std::int32_t>(n[4])};
  }

  Result<Turn> next(const Outcome& outcome) override {
    return first_ ? told(first_->next(outcome)) : told(Turn());
  }
  Result<Turn> look() override { return first_ ? told(first_->look()) : told(Turn()); }

  Status wait(Deadline by) override { return first_ ? first_->wait(by) : Status(); }
  // others of the run then find what all ranks have pushed
  Status leave() override {
    STORMO_RETURN_IF_ERROR(ranks_.barrier());
    return first_ ? first_->leave() : Status();
  }
  Status advance(std::uint64_t step) override { return first_ ? first_->advance(step) : Status(); }
  Status stop(int signal) override { return first_ ? first_->stop(signal) : Status(); }

 private:
  /// Servers that have ended because the run is over are no failure.
  Result<Turn> told(const Result<Turn>& turn) {
    const bool is_chief = first_ && session_.first_->is_chief();
    const bool is_over = first_ && session_.first_->is_over();
    if (!is_over) STORMO_RETURN_IF_ERROR(turn.status());
    TurnNumbers n = numbers_of(turn.ok() ? *turn : Turn(), is_chief, is_over);
    STORMO_RETURN_IF_ERROR(ranks_.broadcast(std::span<std::int64_t>(n), 0));
    session_.is_chief_ = n[12] != 0;
    session_.is_over_ = n[13] != 0;
    Ledger::Turn out = turn_of(n);
    if (turn.ok()) out.losses = turn->losses;  // only the first rank reports
    return out;
  }

  RankSession& session_;
  comm::Communicator& ranks_;
  Ledger* first_;  // null: this is another rank
};

RankSession::RankSession(const Place& place, std::shared_ptr<server::WorkerSession> own)
    : place_(place),
      own_(std::move(own)),
      first_(place.rank == 0 ? own_.get() : nullptr),
      // such a worker is not started again, so the first one is no new process
      opens_(place.worker == 0),
      is_chief_(opens_) {}

RankSession::~RankSession() = default;

Result<std::vector<std::unique_ptr<server::Shard>>> RankSession::shards(
    const server::RunTerms& terms, Deadline by) {
  if (own_) return own_->shards(terms, by);
  return std::vector<std::unique_ptr<server::Shard>>();
}

Status RankSession::open() { return own_ ? own_->open() : Status(); }

server::Ledger& RankSession::ledger() {
  if (!ledger_) ledger_ = std::make_unique<RankLedger>(*this, first_ ? &first_->ledger() : nullptr);
  return *ledger_;
}

std::unique_ptr<server::Coordinator> RankSession::coordinator() {
  return first_ ? first_->coordinator() : nullptr;
}

Status RankSession::finish() { return own_ ? own_->finish() : Status(); }

void RankSession::fail(const std::string& why) {
  if (own_) own_->fail(why);
}

}  // namespace stormo::train
