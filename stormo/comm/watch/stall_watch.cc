#include <stormo/comm/watch/stall_watch.h>

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include <stormo/comm/watch/flight_record.h>
#include <stormo/comm/watch/stacks.h>
#include <stormo/transport/tcp/tcp_transport.h>

namespace stormo::comm {
namespace {

using json = nlohmann::json;

constexpr std::string_view kInquiryKey = "inquiry";
constexpr Duration kStoreCall = std::chrono::seconds(2);
constexpr Duration kBriefAnswers = std::chrono::seconds(1);
constexpr Duration kWholeAnswers = std::chrono::seconds(3);
constexpr Duration kStacks = std::chrono::seconds(1);
constexpr Duration kLateAnswers = std::chrono::seconds(1);        // of all ranks after the deadline
constexpr Duration kLateAnswer = std::chrono::milliseconds(200);  // at most, for each rank
constexpr Duration kOneAnswer = std::chrono::milliseconds(10);    // at least, for each rank
constexpr Duration kLookAgain = std::chrono::milliseconds(250);
constexpr Duration kAttempt = std::chrono::seconds(5);
constexpr Duration kBeforeExit = std::chrono::seconds(3);  // a launcher is faster
constexpr std::size_t kMaxStacks = 16;

/// When to give up on the next of several answers that must be there by then. One silent rank uses
/// up all the time until then: the Store gets a little more to hand over the others' answers, but
/// many silent ranks do not take that long each.
Deadline for_next_answer(Deadline by) {
  const Duration late = Deadline::at(by.when() + kLateAnswers).remaining();
  const Deadline soon = Deadline::after(std::clamp(late, kOneAnswer, kLateAnswer));
  return Deadline::at(std::max(by.when(), soon.when()));
}

}  // namespace

/// A question to all ranks.
struct StallWatch::Inquiry {
  bool whole = false;
  std::vector<Rank> ends{};     // the job ends because of these
  std::vector<Rank> stacks{};   // of whom stacks are wanted
  std::vector<Rank> look_at{};  // ranks that have not answered: at their processes
};

StallWatch::StallWatch(transport::StoreClient& store, Options options)
    : store_(store),
      options_(std::move(options)),
      looks_(std::make_unique<OperationLane>()),
      answers_(std::make_unique<OperationLane>()) {}

StallWatch::~StallWatch() { stop(); }

void StallWatch::stop() {
  std::unique_ptr<OperationLane> looks;
  std::unique_ptr<OperationLane> answers;
  const std::lock_guard lock(mutex_);
  stopping_ = true;
  looks = std::move(looks_);
  answers = std::move(answers_);
}

Status StallWatch::start() {
  return store_.watch(kInquiryKey, [this](std::string_view inquiry) {
    const std::lock_guard lock(mutex_);
    if (answers_ == nullptr) return;
    answer_ = answers_->submit([this, text = std::string(inquiry)] {
      answer(text);
      return Status();
    });
  });
}

void StallWatch::tick() {
  options_.activities->tick(std::chrono::steady_clock::now(), transport::tcp_progress());
  const Duration awake = options_.activities->awake();
  const Pace pace = options_.activities->pace();
  const std::lock_guard lock(mutex_);
  if (!stopping_ && !options_.health->failed()) follow_calls(awake, pace);
}

void StallWatch::follow_calls(Duration awake, const Pace& pace) {
  std::vector<Waiting> now;
  std::vector<protocol::GroupReport> calls;
  for (const Activities::Group& group : options_.activities->groups()) {
    const Activity::Record last = group.activity->last();
    if (!last.running()) continue;
    const Operation& o = last.operation;
    calls.push_back({.group = group.name,
                     .rank = group.rank,
                     .size = group.size,
                     .place = last.place,
                     .operation = to_text(o),
                     .running = true,
                     .is_message = is_message(o.kind),
                     .peer = o.root});
    const auto known = std::ranges::find_if(
        waiting_, [&](const Waiting& w) { return w.group == group.name && w.began == last.began; });
    if (known != waiting_.end()) {
      now.push_back(*known);
    } else {
      now.push_back({.group = group.name,
                     .began = last.began,
                     .is_last = o.kind == OperationKind::kFinalize,
                     .since = awake});
    }
  }
  for (const Waiting& w : waiting_) {
    const bool goes_on = std::ranges::any_of(
        now, [&](const Waiting& n) { return n.group == w.group && n.began == w.began; });
    if (!goes_on && pace.started) slowest_wait_ = std::max(slowest_wait_, awake - w.since);
  }
  waiting_ = std::move(now);
  for (std::size_t i = 0; i < waiting_.size(); ++i) consider(waiting_[i], calls[i], awake, pace);
}

/// Whether this rank has waited so long that it should ask the others.
void StallWatch::consider(Waiting& w, const protocol::GroupReport& in, Duration awake,
                          const Pace& pace) {
  if (looking_ || looks_ == nullptr || awake < w.look_at) return;
  const protocol::StallBounds bounds = protocol::stall_bounds(
      options_.limits, pace.started, std::max(pace.slowest_step, slowest_wait_));
  const Duration waited = awake - w.since;
  const bool warn = !w.warned && waited >= bounds.warn_after;
  const bool end = waited >= bounds.end_after && !w.is_last;
  if (!warn && !end) return;
  looking_ = true;
  Look next{.waiting = w,
            .wait = {in, waited},
            .final = !warn,
            .limit = warn ? bounds.warn_after : bounds.end_after};
  look_ = looks_->submit([this, next = std::move(next)] {
    try {
      look(next);
    } catch (const json::exception& e) {
      fmt::print(stderr, "stormo: warning: an answer of another rank: {}\n", e.what());
    }
    const std::lock_guard lock(mutex_);
    looking_ = false;
    return Status();
  });
}

/// Later, and then as one who has been warned or not.
void StallWatch::look_again(const Look& look, Duration after) {
  const Duration awake = options_.activities->awake();
  const std::lock_guard lock(mutex_);
  for (Waiting& w : waiting_) {
    if (w.group != look.waiting.group || w.began != look.waiting.began) continue;
    w = look.waiting;
    w.look_at = awake + after;
  }
}

/// False when another rank has taken this upon itself.
Result<bool> StallWatch::claim(const std::string& key) {
  STORMO_ASSIGN_OR_RETURN(
      const std::string owner,
      store_.set_if_absent(key, options_.identity, Deadline::after(kStoreCall)));
  return owner == options_.identity;
}

void StallWatch::look(const Look& asked) {
  Look next = asked;
  const std::string stage = asked.final ? fmt::format("end {}", asked.waiting.attempts) : "warning";
  const std::string key = fmt::format(
      "{}/{} {}/{}", key_of_group("stall", asked.wait.in.group), asked.wait.in.place,
      asked.wait.in.is_message ? fmt::format("message of {}", options_.rank) : "", stage);
  next.waiting.warned = true;
  if (asked.final) ++next.waiting.attempts;
  const Result<bool> mine = claim(key);
  if (mine.status().code() == Code::kCancelled) return;  // this rank has ended its session
  if (!mine.ok()) {
    const Status why =
        mine.status().within(fmt::format("{} waits in {}, and the job's store says nothing",
                                         options_.identity, asked.wait.in.operation));
    if (asked.final) {
      options_.health->fail(why);
    } else {
      fmt::print(stderr, "stormo: warning: {}\n", why.message());
    }
    return look_again(next, kAttempt);
  }
  if (!*mine) return look_again(next, asked.final ? kAttempt : Duration::zero());
  std::vector<protocol::RankReport> reports = ask({}, nullptr);
  find_silent(reports);
  const protocol::Stall stall = protocol::find_stall(asked.wait, reports);
  const bool waits =
      asked.final && !stall.silent.empty() && options_.on_stopped == transport::OnStopped::kWait;
  if (waits || stall.age < asked.limit) {  // somebody that it waits for is still getting on
    static_cast<void>(store_.erase(key, Deadline::after(kStoreCall)));
    return look_again(asked, waits ? kAttempt : std::max(kLookAgain, asked.limit - stall.age));
  }
  if (asked.final) {
    end_job(stall);
  } else {
    fmt::print(stderr, "stormo: warning: {}\n", stall.text);
  }
  look_again(next, asked.final ? kAttempt : Duration::zero());
}

/// What all ranks answer, in their order, and their records as they come if they are wanted.
std::vector<protocol::RankReport> StallWatch::ask(const Inquiry& inquiry,
                                                  std::vector<std::string>* records) {
  const std::string id = fmt::format("{}-{}", options_.rank, num_inquiries_++);
  json question = {{"id", id},
                   {"whole", inquiry.whole},
                   {"ends", inquiry.ends},
                   {"stacks", inquiry.stacks},
                   {"look_at", json::array()}};
  const Deadline processes_by = Deadline::after(kStoreCall);
  for (const Rank rank : inquiry.look_at) {
    const RankProcess* const process = process_of(rank, processes_by);
    if (process == nullptr) continue;
    question["look_at"].push_back(
        {{"rank", rank}, {"pid", process->pid}, {"namespace", process->space}});
  }
  const std::string text = question.dump();
  std::vector<protocol::RankReport> reports;
  static_cast<void>(store_.set(kInquiryKey, text, Deadline::after(kStoreCall)));
  const Deadline by = Deadline::after(inquiry.whole ? kWholeAnswers : kBriefAnswers);
  std::vector<LeftRank> left;
  if (options_.left) left = options_.left();
  for (Rank r = 0; r < options_.size; ++r) {
    // who has left is in no group, and missing in none
    if (std::ranges::find(left, r, &LeftRank::rank) != left.end()) {
      reports.push_back({.rank = r, .answered = true});
      continue;
    }
    const std::string key = fmt::format("answer/{}/{}", id, r);
    // at the end of the job nobody waits for those that said nothing before
    const bool silent = std::ranges::find(inquiry.look_at, r) != inquiry.look_at.end();
    const auto answer = store_.get(
        key, silent && inquiry.whole ? Deadline::after(kOneAnswer) : for_next_answer(by));
    auto report =
        answer.ok() ? parse_rank_report(*answer) : Result<protocol::RankReport>(answer.status());
    if (answer.ok()) static_cast<void>(store_.erase(key, Deadline::after(kStoreCall)));
    if (report.ok() && records != nullptr) records->push_back(*answer);
    reports.push_back(report.ok() ? std::move(report).value() : protocol::RankReport{.rank = r});
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) break;
    }
  }
  return reports;
}

/// Every rank has posted it before it is in an operation: the deadline is for a Store that answers
/// late. Each is asked for once: it never changes. Null: it was not to be had.
const RankProcess* StallWatch::process_of(Rank rank, Deadline by) {
  const auto known = processes_.find(rank);
  if (known != processes_.end()) return &known->second;
  if (options_.find_process == nullptr) return nullptr;
  auto found = options_.find_process(store_, rank, for_next_answer(by));
  if (!found.ok()) return nullptr;
  return &processes_.emplace(rank, *std::move(found)).first->second;
}

/// Asks again those that do not answer: they may be late, or have left. And what ranks of the same
/// host see of them.
void StallWatch::find_silent(std::vector<protocol::RankReport>& reports) {
  Inquiry inquiry;
  for (protocol::RankReport& r : reports) {
    if (!r.answered) inquiry.look_at.push_back(r.rank);
  }
  if (inquiry.look_at.empty()) return;
  std::vector<std::string> records;
  const std::vector<protocol::RankReport> again = ask(inquiry, &records);
  const Deadline processes_by = Deadline::after(kStoreCall);
  for (const Rank silent : inquiry.look_at) {
    protocol::RankReport& report = reports[static_cast<std::size_t>(silent)];
    if (std::cmp_less(silent, again.size())) report = again[static_cast<std::size_t>(silent)];
    if (report.answered) continue;
    const RankProcess* const process = process_of(silent, processes_by);
    report.identity = process == nullptr ? fmt::format("rank {}", silent) : process->identity;
    for (const std::string& record : records) {
      const json answer = json::parse(record, nullptr, /*allow_exceptions=*/false);
      for (const json& neighbour : answer.value("neighbours", json::array())) {
        if (neighbour.value("rank", -1) == silent) report.seen = neighbour.value("seen", "");
      }
    }
  }
}

void StallWatch::end_job(const protocol::Stall& stall) {
  Inquiry inquiry{
      .whole = true, .ends = stall.missing, .stacks = stall.missing, .look_at = stall.silent};
  if (stall.missing.empty()) inquiry.stacks = stall.waiting;
  if (inquiry.stacks.size() > kMaxStacks) inquiry.stacks.resize(kMaxStacks);
  std::vector<std::string> records;
  static_cast<void>(ask(inquiry, &records));
  std::string text = stall.text;
  for (const std::string& record : records) {
    const std::string stack = main_stack_of(record);
    if (stack.empty() || stall.missing.empty()) continue;
    const json parsed = json::parse(record, nullptr, /*allow_exceptions=*/false);
    text += fmt::format("\n  rank {} is in {}", parsed.value("rank", -1), stack);
  }
  std::string path = options_.flight_file.empty() ? "stormo-flight.json" : options_.flight_file;
  std::error_code ignored;
  path = std::filesystem::absolute(path, ignored).string();
  const Status written = write_flight_file(path, stall, records);
  text += written.ok() ? fmt::format("\n  last operations of all ranks: {} (written by rank {})",
                                     path, options_.rank)
                       : "\n  last operations: " + written.message();
  options_.fail({Code::kDeadlineExceeded, text});
}

/// This rank's record, and what it sees of processes that do not answer.
void StallWatch::answer_to(std::string_view inquiry) {
  const json asked = json::parse(inquiry, nullptr, /*allow_exceptions=*/false);
  RankRecord record{.rank = options_.rank,
                    .identity = options_.identity,
                    .whole = asked.at("whole").get<bool>(),
                    .threads = {},
                    .neighbours = {}};
  const auto stacks = asked.at("stacks").get<std::vector<Rank>>();
  const auto ends = asked.at("ends").get<std::vector<Rank>>();
  if (std::ranges::find(stacks, options_.rank) != stacks.end()) {
    record.threads = threads_of_this_process(kStacks);
  }
  if (std::ranges::find(ends, options_.rank) != ends.end()) end_this_process_later();
  for (const json& process : asked.at("look_at")) {
    if (process.value("namespace", "") != process_namespace()) continue;
    const pid_t pid = process.at("pid").get<pid_t>();
    record.neighbours.push_back({.rank = process.at("rank").get<Rank>(),
                                 .pid = pid,
                                 .seen = describe_process(pid),
                                 .threads = threads_of_process(pid)});
  }
  const std::string id = asked.at("id").get<std::string>();
  static_cast<void>(store_.set(fmt::format("answer/{}/{}", id, options_.rank),
                               to_json(record, *options_.activities, scale_),
                               Deadline::after(kStoreCall)));
}

void StallWatch::answer(std::string_view inquiry) {
  try {
    answer_to(inquiry);
  } catch (const json::exception& e) {
    fmt::print(stderr, "stormo: warning: an inquiry of another rank: {}\n", e.what());
  }
}

/// A rank that does not notice the end of the job would hold its processors for ever where no
/// launcher ends it.
void StallWatch::end_this_process_later() {
  if (std::exchange(ending_, true)) return;
  std::thread([health = options_.health, group = std::weak_ptr(options_.activities),
               before = options_.activities->changes(), identity = options_.identity] {
    std::this_thread::sleep_for(kBeforeExit);
    const auto activities = group.lock();  // gone: the program has given its group up
    if (!health->failed() || activities == nullptr || activities->changes() != before) return;
    fmt::print(stderr, "stormo: {} does not notice that the job has failed: ended\n", identity);
    std::_Exit(1);
  }).detach();
}

}  // namespace stormo::comm
