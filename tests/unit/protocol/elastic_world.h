#pragma once

#include <stormo/protocol/elastic/average_history.h>
#include <stormo/protocol/elastic/elastic_member.h>

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace stormo::protocol::test {

/// What is done wrong around or inside of the members. Each of these is a mistake that somebody
/// could make.
enum class Bug {
  kNone,
  kAcceptsOldEpochs,         ///< what carries an older epoch is taken for present
  kPublishesBeforeVisible,   ///< as soon as the gradient is there
  kCommitsWithoutAgreement,  ///< likewise
  kHealsWithoutHash,         ///< the state that was received is not compared
  kVotesTwice,               ///< the register grants two records of one epoch
  kLedgerPlusOne,            ///< samples are off by one in later epochs
  kCountsWallClock,          ///< its own pause counts as the silence of others
  kDoesNotFloodAbort,        ///< those that hear of a recovery go on waiting
  // where members average their states
  kKeepsHalfAnAverage,  ///< who has not taken one goes on as if it had
  kAveragesAgain,       ///< who has taken one takes part in the next one behind the same step
};

struct ElasticWorldOptions {
  int members = 4;    ///< at the beginning
  int newcomers = 2;  ///< start later
  std::uint64_t steps = 1000;
  Bug bug = Bug::kNone;
  /// Of the model; processes have them in turns. Faults are rarer by as much: members go on only
  /// where some of each part reach each other.
  std::uint32_t parts = 1;
  /// Members change their states by themselves, and average them behind every fourth step.
  bool averages = false;
};

/// What happened, to show that it did.
struct ElasticCounts {
  std::uint64_t events = 0, steps = 0, epochs = 0, redone = 0, prepared_bases = 0, healed = 0;
  std::uint64_t kills = 0, pauses = 0, cuts = 0, hangs = 0, gave_up = 0, leaves = 0, flips = 0,
                failed_heals = 0;
  std::uint64_t broken = 0, freezes = 0;
  std::uint64_t register_losses = 0, fast_recoveries = 0, prepared_groups = 0;
  std::uint64_t averages = 0, given_averages = 0, made_anew = 0;
  std::uint64_t left = 0;  ///< steps that nobody did, because all members were to leave
  void add(const ElasticCounts& other);
  std::string text() const;
};

/// Members of an elastic job, their main threads, the lines between them, and a register on three
/// hosts, in virtual time. By chance processes are killed, stopped and hang, lines are cut, bits
/// flip and register hosts are lost. From nine tenths of the steps on nothing fails any more. Where
/// all others are lost, or cut off, and the rest is to leave, the job stops before its last step.
///
/// A state is a number for each slice of it. A step mixes the step's gradient into each, and a
/// gradient depends on who has computed which samples: redone by others it is another one. Where
/// members average each has a gradient and a state of its own.
class ElasticWorld {
 public:
  ElasticWorld(std::uint64_t seed, ElasticWorldOptions options);
  /// Until the job has ended, or something is wrong.
  void run();
  /// The first thing that was wrong; empty if nothing was.
  const std::string& wrong() const { return wrong_; }
  const ElasticCounts& counts() const { return counts_; }

 private:
  static constexpr int kSlices = 4;
  static constexpr Healing kHealing{
      .slices = kSlices, .slices_per_step = 1, .near_slices_per_step = 2};
  static constexpr std::uint64_t kBatch = 16;
  using State = std::array<std::uint64_t, kSlices>;
  enum class Part { kNone, kGroup, kAverage, kStep, kAgree };

  /// Which collective: epoch, part, step, and which time that this step is done in this epoch.
  using Key = std::tuple<Epoch, Part, std::uint64_t, std::uint64_t>;
  struct Entry {
    SampleRange samples{};
    State state{};  ///< donors send slices of it
    AverageHistory history{};
    State common{};
    std::uint64_t gradient_hash = 0, state_hash = 0;
    bool stops = false, changes = false;
  };
  struct Collective {
    ElasticRecord record{};
    std::vector<std::optional<Entry>> entries{};  ///< by rank
  };
  /// The gradient of a step, on one member.
  struct Prepared {
    std::uint64_t step = 0, gradient = 0;
    bool has_all_samples = false;  ///< of the batch, each once
  };
  using Wish = std::pair<Epoch, std::uint32_t>;  ///< the epoch, and the group's number
  struct Process {
    std::optional<ElasticMember> machine{};
    MemberId id{};
    bool is_alive = false, has_ended = false, hangs = false, is_to_leave = false;
    TimePoint paused_until{}, paused_at{};
    TimePoint tick_at = TimePoint::max();
    std::vector<ElasticInput> backlog{};
    Part part = Part::kNone;
    Key key{};
    RunStep order{};
    bool is_aborted = false;
    std::uint64_t attempt = 0;
    ElasticRecord group{};
    State state{};
    AverageHistory history{};
    State common{};  ///< of all, by the last average
    Prepared prepared{};
    std::uint64_t started = 0;  ///< the last step that it has begun
    Wish prepares{}, has_ready{};
  };
  struct Task {
    std::size_t slot = 0;
    std::uint64_t incarnation = 0;
    std::optional<ElasticInput> input{};
    std::function<void()> run{};
  };

  // elastic_world.cc: time, processes, messages, the register
  void start(std::size_t slot);
  void at(Duration after, std::function<void()> run);
  void tell(std::size_t slot, Duration after, ElasticInput input);
  void push(TimePoint when, Task task);
  void perform_next();
  void deliver(std::size_t slot, std::uint64_t incarnation, ElasticInput input);
  void resume(std::size_t slot, std::uint64_t incarnation);
  void handle(std::size_t slot, ElasticInput input);
  void spoil(const Process& p, ElasticInput& input) const;
  void when_running(std::size_t slot, Duration after, std::function<void()> run);
  void schedule_tick(std::size_t slot);
  void perform(std::size_t slot, ElasticAction action);
  void send(std::size_t slot, SendMessage action);
  void use_register(std::size_t slot, std::optional<ElasticRecord> next);
  bool reaches_register(std::size_t slot) const;
  std::size_t slot_of(const std::string& identity) const;
  void fail(const std::string& what);
  std::string picture() const;
  Duration random(double least_ms, double most_ms);
  bool chance(double p);
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(random_() % n); }

  // elastic_world_steps.cc: parts of steps, collectives
  void order(std::size_t slot, const StartGroup& action);
  void order(std::size_t slot, const RunStep& action);
  void order(std::size_t slot, AgreeOn action);
  void order(std::size_t slot, const PrepareGroup& action);
  void make_ready(const ElasticRecord& wish);
  void begin_step(std::size_t slot);
  void begin_part(Process& p, const Key& key);
  void apply(std::size_t slot, const ApplyUpdate& action);
  void abort(std::size_t slot);
  void enter(std::size_t slot, const Key& key, const Entry& entry);
  void enter_step(std::size_t slot, const Key& key);
  void complete(const Key& key, const Collective& all);
  void bring(const Key& key, const std::shared_ptr<const Collective>& all, std::size_t rank);
  void conclude(std::size_t slot, const Key& key, const Collective& all);
  void receive_step(Process& p, const Key& key, const Collective& all);
  static StepAgreed verdict(const Key& key, const Collective& all);
  static State after(State state, std::uint64_t step, std::uint64_t gradient);
  static std::uint64_t hash_of(const State& state, std::uint64_t step);
  std::uint64_t state_hash(const Process& p, const State& state, std::uint64_t step) const {
    return options_.averages ? p.history.hash_after(step) : hash_of(state, step);
  }
  Healing healing() const { return options_.averages ? Healing() : kHealing; }

  // elastic_world_averages.cc: where members average their states
  static bool is_average_due(const Process& p);
  void average(std::size_t slot, const RunStep& action);
  void take_average(std::size_t slot, const Key& key, const Collective& all);
  void settle_average(Process& p, const Collective& all);
  void check_histories(const Collective& all);
  Entry entry_of(const Process& p) const;

  std::uint32_t part_of(std::size_t slot) const {
    return static_cast<std::uint32_t>(slot) % options_.parts;
  }
  /// As the members know it, for whom each part of the model has hashes of its own.
  std::uint64_t told(std::uint64_t hash, std::size_t slot) const {
    return hash + 2 * part_of(slot);
  }

  // elastic_world_faults.cc: what fails, and what must hold
  void plan_fault();
  void cause_fault();
  void cause_network_fault(std::size_t slot);
  void kill(std::size_t slot);
  void hang(std::size_t slot);
  void look_after_hung(std::size_t slot, std::uint64_t incarnation, int checks);
  void end_process(std::size_t slot);
  void pause(std::size_t slot, Duration length);
  void freeze();
  void cut(std::size_t from, std::size_t to, Duration length);
  void break_connection(std::size_t from, std::size_t to);
  void partition();
  void flap(std::size_t a, std::size_t b, int times);
  void lose_register_host();
  bool may_lose(std::size_t slot) const;
  bool has_other_holder(const ElasticRecord& record, std::size_t slot) const;
  bool all_are_to_leave() const;
  bool is_quiet() const;
  void expect_recovery();
  void calm_down();
  void check_record(const ElasticRecord& next);
  void check_commit(std::size_t slot, std::uint64_t step, const State& state,
                    const Prepared& prepared);

  ElasticWorldOptions options_;
  std::mt19937_64 random_;
  bool is_benign_;  // only pauses below the limit
  bool loses_messages_;
  std::size_t min_ranks_;
  double fault_every_s_;
  TimePoint now_{};
  std::uint64_t sequence_ = 0;
  std::vector<Task> tasks_;
  std::vector<std::size_t> free_tasks_;
  struct Due {
    TimePoint at;
    std::uint64_t sequence;
    std::size_t task;
    bool operator>(const Due& o) const {
      return std::tie(at, sequence) > std::tie(o.at, o.sequence);
    }
  };
  std::priority_queue<Due, std::vector<Due>, std::greater<>> queue_;
  std::vector<Process> processes_;
  std::vector<std::vector<int>> cuts_;  // from, to: how often it is cut
  std::array<bool, 3> register_is_up_{true, true, true};
  ElasticRecord register_{};
  std::map<std::uint64_t, ElasticRecord> proposals_;  // on their way to the register
  std::map<Key, Collective> collectives_;
  std::map<Wish, std::vector<MemberId>> preparing_;  // those that make this group
  /// After each step that was committed, by part of the model: the state hash.
  std::vector<std::map<std::uint32_t, std::uint64_t>> lineage_;
  Epoch last_commit_epoch_ = 0;
  TimePoint last_commit_{};
  TimePoint next_freeze_{};
  TimePoint faults_end_{};  // those that have begun
  std::uint64_t faults_ = 0;
  bool is_calm_ = false;
  std::string wrong_;
  ElasticCounts counts_;
};

}  // namespace stormo::protocol::test
