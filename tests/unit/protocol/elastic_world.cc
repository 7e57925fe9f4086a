#include "tests/unit/protocol/elastic_world.h"

#include <algorithm>

namespace stormo::protocol::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::uint64_t kPlanHash = 7;
constexpr auto kLongestRun = std::chrono::minutes(30);

/// "h1/5": some hosts have two members, others one.
std::string identity_of(std::size_t slot) {
  constexpr std::size_t kHosts = 4;
  return "h" + std::to_string(slot % kHosts) + "/" + std::to_string(slot);
}

}  // namespace

namespace {

using Count = std::uint64_t ElasticCounts::*;
constexpr std::pair<const char*, Count> kCounts[] = {
    {"events", &ElasticCounts::events},
    {"steps", &ElasticCounts::steps},
    {"epochs", &ElasticCounts::epochs},
    {"steps redone by a member", &ElasticCounts::redone},
    {"bases that nobody had applied", &ElasticCounts::prepared_bases},
    {"healed", &ElasticCounts::healed},
    {"kills", &ElasticCounts::kills},
    {"pauses", &ElasticCounts::pauses},
    {"freezes", &ElasticCounts::freezes},
    {"cuts", &ElasticCounts::cuts},
    {"broken connections", &ElasticCounts::broken},
    {"hangs", &ElasticCounts::hangs},
    {"gave up", &ElasticCounts::gave_up},
    {"leaves", &ElasticCounts::leaves},
    {"flips", &ElasticCounts::flips},
    {"slices that flip", &ElasticCounts::failed_heals},
    {"lost register hosts", &ElasticCounts::register_losses},
    {"fast recoveries", &ElasticCounts::fast_recoveries},
    {"epochs whose group was ready", &ElasticCounts::prepared_groups},
    {"averages", &ElasticCounts::averages},
    {"given averages", &ElasticCounts::given_averages},
    {"averages made anew", &ElasticCounts::made_anew},
    {"steps of jobs that were left", &ElasticCounts::left}};

}  // namespace

void ElasticCounts::add(const ElasticCounts& other) {
  for (const auto& [name, count] : kCounts) this->*count += other.*count;
}

std::string ElasticCounts::text() const {
  std::string text;
  for (const auto& [name, count] : kCounts) {
    text += (text.empty() ? "" : ", ") + std::to_string(this->*count) + " " + name;
  }
  return text;
}

ElasticWorld::ElasticWorld(std::uint64_t seed, ElasticWorldOptions options)
    : options_(options),
      random_(seed),
      is_benign_(seed % 4 == 0),
      loses_messages_(seed % 4 >= 2),
      min_ranks_(seed % 7 == 3 ? 2 : 1),
      fault_every_s_((is_benign_ ? 0.7 : 1.0 + 2.0 * static_cast<double>(seed % 5)) *
                     options.parts) {
  const auto all = static_cast<std::size_t>(options.members + options.newcomers);
  processes_.resize(all);
  cuts_.assign(all, std::vector<int>(all, 0));
  register_ = {.epoch = 1, .plan_hash = kPlanHash};
  lineage_.emplace_back();
  for (std::uint32_t part = 0; part < options.parts; ++part) {
    lineage_[0][part] = state_hash({}, {}, 0);
  }
  if (options.parts == 1) register_.state_hash = lineage_[0][0];
  for (std::size_t slot = 0; slot < static_cast<std::size_t>(options.members); ++slot) {
    start(slot);
    register_.members.push_back(
        {.id = processes_[slot].id, .address = "here", .part = part_of(slot)});
    register_.donors.push_back(processes_[slot].id.identity);
  }
  for (auto slot = static_cast<std::size_t>(options.members); slot < all; ++slot) {
    processes_[slot].id = {.identity = identity_of(slot)};
    if (!is_benign_) at(random(5'000, 20'000), [this, slot] { start(slot); });
  }
  plan_fault();
}

void ElasticWorld::run() {
  const auto goes_on = [](const Process& p) { return p.is_alive; };
  while (wrong_.empty() && !queue_.empty()) {
    if (lineage_.size() > options_.steps || counts_.left > 0) {
      // members that were outside have nobody left to ask
      const auto is_in = [&](const Process& p) { return goes_on(p) && register_.names(p.id); };
      if (std::ranges::none_of(processes_, is_in)) break;
    }
    perform_next();
    if (!is_calm_ && lineage_.size() * 10 > options_.steps * 9) calm_down();
    if (is_calm_ && now_ - last_commit_ > seconds(20)) fail("nothing is committed any more");
    if (now_ > TimePoint{} + kLongestRun) fail("the job does not come to its end");
  }
  if (wrong_.empty() && lineage_.size() + counts_.left <= options_.steps) {
    fail("all have ended too early");
  }
  counts_.steps = lineage_.size() - 1;
}

void ElasticWorld::fail(const std::string& what) {
  if (!wrong_.empty()) return;
  const auto at = std::chrono::duration_cast<milliseconds>(now_.time_since_epoch()).count();
  wrong_ = what + " (after " + std::to_string(at) + " ms, step " +
           std::to_string(lineage_.size() - 1) + ")" + picture();
}

/// Of all members, and of the register.
std::string ElasticWorld::picture() const {
  std::string text = "\n  register: epoch " + std::to_string(register_.epoch) + ", base " +
                     std::to_string(register_.base_step) + ":";
  for (const ElasticEntry& m : register_.members) {
    text += " " + m.id.identity + "." + std::to_string(m.id.incarnation) +
            (register_.is_donor(m.id.identity) ? "+" : "");
  }
  for (const Process& p : processes_) {
    text += "\n  " + p.id.identity + "." + std::to_string(p.id.incarnation);
    if (!p.is_alive) {
      text += " has ended";
      continue;
    }
    const HeldState& held = p.machine->held();
    text += ": epoch " + std::to_string(p.machine->epoch()) + ", standing " +
            std::to_string(static_cast<int>(p.machine->standing())) + ", step " +
            std::to_string(held.step) + (held.is_whole ? " whole" : "") + ", prepared " +
            std::to_string(held.prepared_step) + ", part " +
            std::to_string(static_cast<int>(p.part)) + (p.hangs ? ", hangs" : "");
  }
  return text;
}

Duration ElasticWorld::random(double least_ms, double most_ms) {
  const double u = static_cast<double>(random_() >> 11) * 0x1.0p-53;
  return Duration(static_cast<std::int64_t>((least_ms + u * (most_ms - least_ms)) * 1e6));
}

bool ElasticWorld::chance(double p) { return static_cast<double>(random_() >> 11) * 0x1.0p-53 < p; }

std::size_t ElasticWorld::slot_of(const std::string& identity) const {
  return static_cast<std::size_t>(std::stoi(identity.substr(identity.find('/') + 1)));
}

void ElasticWorld::start(std::size_t slot) {
  Process& p = processes_[slot];
  if (p.is_alive || lineage_.size() > options_.steps) return;
  const std::uint64_t incarnation = p.id.incarnation + 1;
  p = {};
  p.id = {.identity = identity_of(slot), .incarnation = incarnation};
  p.is_alive = true;
  p.machine.emplace(ElasticOptions{.me = p.id,
                                   .address = "here",
                                   .part = part_of(slot),
                                   .plan_hash = kPlanHash,
                                   .initial_hash = told(state_hash({}, {}, 0), slot),
                                   .last_step = options_.steps,
                                   .global_batch = kBatch,
                                   .min_ranks = min_ranks_,
                                   .healing = healing()});
  tell(slot, random(0, 20), ElasticTick{});
}

void ElasticWorld::push(TimePoint when, Task task) {
  std::size_t index = tasks_.size();
  if (free_tasks_.empty()) {
    tasks_.push_back(std::move(task));
  } else {
    index = free_tasks_.back();
    free_tasks_.pop_back();
    tasks_[index] = std::move(task);
  }
  queue_.push({.at = when, .sequence = sequence_++, .task = index});
}

void ElasticWorld::at(Duration after, std::function<void()> run) {
  push(now_ + after, {.run = std::move(run)});
}

void ElasticWorld::tell(std::size_t slot, Duration after, ElasticInput input) {
  push(now_ + after,
       {.slot = slot, .incarnation = processes_[slot].id.incarnation, .input = std::move(input)});
}

void ElasticWorld::perform_next() {
  const Due due = queue_.top();
  queue_.pop();
  now_ = due.at;
  ++counts_.events;
  Task task = std::move(tasks_[due.task]);
  free_tasks_.push_back(due.task);
  if (task.run) return task.run();
  if (std::holds_alternative<ElasticTick>(*task.input)) {
    Process& p = processes_[task.slot];
    if (p.tick_at != TimePoint::max() && p.tick_at != now_) return;  // there is an earlier one
  }
  deliver(task.slot, task.incarnation, std::move(*task.input));
}

void ElasticWorld::deliver(std::size_t slot, std::uint64_t incarnation, ElasticInput input) {
  Process& p = processes_[slot];
  if (!p.is_alive || p.id.incarnation != incarnation) return;
  if (now_ < p.paused_until) {
    if (!std::holds_alternative<ElasticTick>(input)) p.backlog.push_back(std::move(input));
    return;
  }
  handle(slot, std::move(input));
}

/// As far as this start of the process lives then.
void ElasticWorld::when_running(std::size_t slot, Duration after, std::function<void()> run) {
  const std::uint64_t incarnation = processes_[slot].id.incarnation;
  at(after, [this, slot, incarnation, run = std::move(run)] {
    const Process& p = processes_[slot];
    if (!p.is_alive || p.id.incarnation != incarnation) return;
    if (now_ < p.paused_until) return when_running(slot, p.paused_until - now_ + Duration(1), run);
    run();
  });
}

void ElasticWorld::resume(std::size_t slot, std::uint64_t incarnation) {
  Process& p = processes_[slot];
  if (!p.is_alive || p.id.incarnation != incarnation || now_ < p.paused_until) return;
  if (options_.bug == Bug::kCountsWallClock) {
    for (TimePoint t = p.paused_at; t < now_ && p.is_alive; t += milliseconds(200)) {
      for (ElasticAction& action : p.machine->handle(ElasticTick{}, t)) {
        perform(slot, std::move(action));
      }
    }
  }
  handle(slot, ElasticTick{});
  for (ElasticInput& input : std::exchange(p.backlog, {})) {
    if (p.is_alive) handle(slot, std::move(input));
  }
}

void ElasticWorld::handle(std::size_t slot, ElasticInput input) {
  Process& p = processes_[slot];
  spoil(p, input);
  for (ElasticAction& action : p.machine->handle(input, now_)) perform(slot, std::move(action));
  if (p.is_alive) schedule_tick(slot);
}

void ElasticWorld::spoil(const Process& p, ElasticInput& input) const {
  auto* const heard = std::get_if<ElasticHeard>(&input);
  if (heard == nullptr) return;
  auto* const status = std::get_if<MemberStatus>(&heard->message);
  if (status == nullptr) return;
  if (options_.bug == Bug::kAcceptsOldEpochs) {
    status->epoch = std::max(status->epoch, p.machine->epoch());
  }
  const bool runs = p.machine->standing() == Standing::kRunning;
  const bool halts =
      status->standing == Standing::kHalting || status->standing == Standing::kResting;
  if (options_.bug == Bug::kDoesNotFloodAbort) {
    status->dead.clear();
    if (runs && halts) status->standing = Standing::kRunning;
  }
}

void ElasticWorld::schedule_tick(std::size_t slot) {
  Process& p = processes_[slot];
  const TimePoint wanted = std::max(p.machine->wakes_at(), now_);
  if (p.tick_at != TimePoint::max() && p.tick_at > now_ && p.tick_at <= wanted) return;
  p.tick_at = wanted + random(0, 2);
  tell(slot, p.tick_at - now_, ElasticTick{});
}

void ElasticWorld::perform(std::size_t slot, ElasticAction action) {
  Process& p = processes_[slot];
  if (auto* message = std::get_if<SendMessage>(&action)) return send(slot, std::move(*message));
  if (std::holds_alternative<AbortPart>(action)) return abort(slot);
  if (std::holds_alternative<ReadRegister>(action)) return use_register(slot, {});
  if (auto* swap = std::get_if<SwapRecord>(&action)) return use_register(slot, swap->next);
  if (auto* group = std::get_if<StartGroup>(&action)) return order(slot, *group);
  if (auto* prepare = std::get_if<PrepareGroup>(&action)) return order(slot, *prepare);
  if (auto* step = std::get_if<RunStep>(&action)) return order(slot, *step);
  if (auto* agree = std::get_if<AgreeOn>(&action)) return order(slot, *agree);
  if (auto* update = std::get_if<ApplyUpdate>(&action)) return apply(slot, *update);
  if (auto* hash = std::get_if<HashState>(&action)) {
    return tell(
        slot, random(1, 10),
        StateHashed{.epoch = hash->epoch, .hash = told(state_hash(p, p.state, hash->step), slot)});
  }
  if (auto* done = std::get_if<StepCommitted>(&action)) {
    return check_commit(slot, done->step, p.state, p.prepared);
  }
  if (auto* end = std::get_if<EndMember>(&action)) {
    if (end->is_failure) fail(end->why);
    if (end->why == "done" && all_are_to_leave()) {
      counts_.left = options_.steps - (lineage_.size() - 1);
    }
    end_process(slot);
    // who has left comes back some time
    if (end->why != "done") at(random(500, 5'000), [this, slot] { start(slot); });
  }
  if (std::holds_alternative<EndProcess>(action)) {
    if (!p.hangs) fail("a process that does not hang has ended itself");
    ++counts_.gave_up;
    end_process(slot);
    at(random(300, 3'000), [this, slot] { start(slot); });
  }
}

void ElasticWorld::send(std::size_t slot, SendMessage action) {
  const std::size_t to = slot_of(action.to);
  if (cuts_[slot][to] > 0) return;
  if (loses_messages_ && !is_calm_ && chance(0.01)) return;
  Duration delay = random(0.1, 2);
  if (chance(0.02)) delay = random(2, 100);
  if (loses_messages_ && !is_calm_ && chance(0.003)) delay = random(100, 4'000);
  tell(to, delay, ElasticHeard{std::move(action.message)});
}

bool ElasticWorld::reaches_register(std::size_t slot) const {
  int reached = 0;
  for (std::size_t host = 0; host < register_is_up_.size(); ++host) {
    reached += register_is_up_[host] && cuts_[slot][host] == 0 && cuts_[host][slot] == 0 ? 1 : 0;
  }
  return reached >= 2;
}

// The calls have an order: RegisterModel shows that. What was begun may take place after the end of
// its process.
void ElasticWorld::use_register(std::size_t slot, std::optional<ElasticRecord> next) {
  const std::uint64_t incarnation = processes_[slot].id.incarnation;
  const std::uint64_t proposal = sequence_;
  if (next) proposals_[proposal] = *next;
  at(random(1, 15), [this, slot, incarnation, proposal, next = std::move(next)] {
    proposals_.erase(proposal);
    const bool is_reached = reaches_register(slot);
    const bool is_second = is_reached && next && next->epoch == register_.epoch;
    if (is_second && options_.bug == Bug::kVotesTwice) {
      if (processes_[slot].id.incarnation == incarnation) tell(slot, {}, RegisterAnswer{next});
      return;
    }
    if (is_reached && next && next->epoch == register_.epoch + 1) {
      check_record(*next);
      register_ = *next;
      ++counts_.epochs;
      counts_.prepared_groups += next->group != 0 ? 1 : 0;
      std::erase_if(collectives_,
                    [&](const auto& c) { return std::get<Epoch>(c.first) + 1 < register_.epoch; });
    }
    if (processes_[slot].id.incarnation != incarnation) return;
    const bool is_lost = !is_reached || (loses_messages_ && !is_calm_ && chance(0.03));
    tell(slot, is_lost ? seconds(1) : random(1, 15),
         is_lost ? RegisterAnswer{} : RegisterAnswer{.present = register_});
  });
}

}  // namespace stormo::protocol::test
