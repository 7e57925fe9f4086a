#include <cli/top/job_status.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <nlohmann/json.hpp>

#include <stormo/base/json_depth.h>
#include <stormo/observe/metrics/monitor.h>

namespace stormo::cli {
namespace {

using Json = nlohmann::ordered_json;
using Seconds = std::array<double, kNumLanes>;

constexpr int kTopSchema = 1;
constexpr int kMostRanks = 1 << 16;  // of a job that may not be one
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// What an object has under this key; null when it has nothing.
const Json& at(const Json& object, const char* key) {
  static const Json kNull;
  const auto found = object.is_object() ? object.find(key) : object.end();
  return found == object.end() ? kNull : *found;
}

std::string text_at(const Json& object, const char* key) {
  const Json& value = at(object, key);
  return value.is_string() ? value.get<std::string>() : "";
}

/// NaN for what is no number.
double number_at(const Json& object, const char* key) {
  const Json& value = at(object, key);
  return value.is_number() ? value.get<double>() : kNaN;
}

std::int64_t count_at(const Json& object, const char* key) {
  const Json& value = at(object, key);
  return value.is_number_integer() ? value.get<std::int64_t>() : 0;
}

Seconds lanes_of(const Json& shares, double step_seconds) {
  Seconds out{};
  for (std::size_t lane = 0; lane < out.size(); ++lane) {
    const std::string name(to_string(static_cast<Lane>(lane)));
    out[lane] = number_at(shares, name.c_str()) * step_seconds;
  }
  return out;
}

void read_start(const Json& record, JobStatus& job) {
  job.started = true;
  job.recipe = text_at(record, "recipe");
  job.strategy = text_at(record, "strategy");
  job.num_ranks =
      static_cast<int>(std::clamp<std::int64_t>(count_at(record, "ranks"), 0, kMostRanks));
  job.num_hosts =
      static_cast<int>(std::clamp<std::int64_t>(count_at(record, "hosts"), 0, kMostRanks));
  job.parameters = count_at(record, "parameters");
  job.global_batch = count_at(record, "global_batch");
  job.planned_steps = count_at(record, "steps");
  job.ranks.resize(static_cast<std::size_t>(job.num_ranks));
}

/// The times of ranks are those of the last logged step, which comes first.
void read_step(const Json& record, JobStatus& job) {
  job.step = {.step = count_at(record, "step"),
              .steps = count_at(record, "steps"),
              .epoch = number_at(record, "epoch"),
              .loss = number_at(record, "loss"),
              .learning_rate = number_at(record, "learning_rate"),
              .samples_per_s = number_at(record, "samples_per_s"),
              .remaining_s = number_at(record, "eta_s")};
  const double step_seconds = 1 / job.steps_per_s();
  if (!std::isfinite(step_seconds)) return;
  const Json& shares = at(record, "rank_shares");
  if (shares.is_array()) {
    const std::size_t known = std::min(job.ranks.size(), shares.size());
    for (std::size_t r = 0; r < known; ++r) {
      job.ranks[r].seconds = lanes_of(shares[r], step_seconds);
    }
    const Json& slowest = at(record, "slowest");
    job.slowest = slowest.is_object() ? static_cast<int>(count_at(slowest, "rank")) : -1;
    if (job.slowest < 0 || job.slowest >= job.num_ranks) {
      job.slowest = -1;
    } else if (const std::string host = text_at(slowest, "host"); !host.empty()) {
      job.ranks[static_cast<std::size_t>(job.slowest)].host = host;
    }
  } else if (job.slowest < 0 && !job.ranks.empty()) {  // that of the rank that reports
    job.ranks.front().seconds = lanes_of(at(record, "share"), step_seconds);
  }
}

void read_evaluation(const Json& record, JobStatus& job) {
  JobStatus::Evaluation& e = job.evaluations.emplace_back();
  e.split = text_at(record, "split");
  e.step = count_at(record, "step");
  e.loss = number_at(record, "loss");
  if (const double accuracy = number_at(record, "accuracy"); !std::isnan(accuracy)) {
    e.accuracy = accuracy;
  }
}

void read_slow_rank(const Json& record, JobStatus& job) {
  const std::int64_t rank = count_at(record, "rank");
  if (rank < 0 || rank >= std::ssize(job.ranks)) return;
  job.ranks[static_cast<std::size_t>(rank)].slow.push_back(
      {.part = text_at(record, "part"),
       .ratio = number_at(record, "ratio"),
       .without = number_at(record, "step_ratio_without")});
}

void read_record(const Json& record, JobStatus& job) {
  const std::string event = text_at(record, "event");
  if (event == "start") read_start(record, job);
  if (event == "step") read_step(record, job);
  if (event == "slow_rank") read_slow_rank(record, job);
  if (event == "eval") read_evaluation(record, job);
  if (event == "warning") job.warning = text_at(record, "message");
  if (event == "error") job.error = text_at(record, "message");
  if (event == "save_failed") {
    job.save_failed = fmt::format("the checkpoint after step {} failed: {}",
                                  count_at(record, "step"), text_at(record, "error"));
  }
  if (event == "end") {
    job.end_steps = count_at(record, "steps");
    job.end_train_loss = number_at(record, "train_loss");
  }
}

void read_process(const Json& process, JobStatus& job) {
  const std::int64_t rank = count_at(process, "rank");
  if (rank < 0 || rank >= std::ssize(job.ranks)) return;  // a server process
  RankStatus& r = job.ranks[static_cast<std::size_t>(rank)];
  r.host = text_at(process, "host");
  r.state = text_at(process, "state");
  r.memory_bytes = static_cast<std::uint64_t>(count_at(process, "memory_bytes"));
}

Json number_or_null(double number) { return std::isfinite(number) ? Json(number) : Json(); }
Json text_or_null(const std::string& text) { return text.empty() ? Json() : Json(text); }

Json rank_json(const RankStatus& r, std::size_t rank, bool slowest) {
  Json out = {{"rank", rank},
              {"host", text_or_null(r.host)},
              {"state", text_or_null(r.state)},
              {"memory_bytes", r.memory_bytes ? Json(*r.memory_bytes) : Json()},
              {"seconds", Json()},
              {"slowest", slowest},
              {"slow", Json::array()}};
  for (const RankStatus::Slow& s : r.slow) {
    out["slow"].push_back({{"part", s.part},
                           {"ratio", number_or_null(s.ratio)},
                           {"step_ratio_without", number_or_null(s.without)}});
  }
  if (!r.seconds) return out;
  for (std::size_t lane = 0; lane < r.seconds->size(); ++lane) {
    out["seconds"][std::string(to_string(static_cast<Lane>(lane)))] =
        number_or_null((*r.seconds)[lane]);
  }
  return out;
}

}  // namespace

double RankStatus::busy_seconds() const {
  return seconds ? (*seconds)[static_cast<std::size_t>(Lane::kCompute)] +
                       (*seconds)[static_cast<std::size_t>(Lane::kData)]
                 : 0;
}

double JobStatus::steps_per_s() const {
  return step && global_batch > 0 ? step->samples_per_s / static_cast<double>(global_batch) : 0;
}

Result<JobStatus> parse_job_status(std::string_view text) {
  const Json page =
      json_nests_within(text) ? Json::parse(text, nullptr, /*allow_exceptions=*/false) : Json();
  if (!at(page, "schema").is_number_integer() || !at(page, "state").is_string()) {
    return Status(Code::kCorrupt, "no status of a job");
  }
  JobStatus job{.version = text_at(page, "version"), .state = text_at(page, "state")};
  if (count_at(page, "schema") != observe::kStatusSchema) {
    return invalid_argument(job.version.empty() ? "another version" : "version " + job.version);
  }
  job.running_s = number_at(page, "running_s");
  for (const Json& record : at(page, "records")) read_record(record, job);
  if (job.step) job.step->age_s = number_at(page, "last_step_s");
  for (const Json& process : at(page, "ranks")) read_process(process, job);
  return job;
}

std::string state_text(const JobStatus& job) {
  if (job.state == "failed") return "failed: " + job.error;
  if (job.has_ended()) {
    std::string text = fmt::format("{} after step {}", job.state, job.end_steps);
    if (std::isfinite(job.end_train_loss)) {
      text += fmt::format(", train loss {:.4f}", job.end_train_loss);
    }
    return text;
  }
  if (!job.step) return job.state;
  return fmt::format("{}, step {} of {}", job.state, job.step->step, job.step->steps);
}

std::string to_json(const JobStatus& job, const std::string& address) {
  Json out = {{"schema", kTopSchema},
              {"address", address},
              {"version", job.version},
              {"state", job.state},
              {"running_s", job.running_s},
              {"recipe", text_or_null(job.recipe)},
              {"strategy", text_or_null(job.strategy)}};
  const auto count = [&](std::int64_t value) { return job.started ? Json(value) : Json(); };
  out["num_ranks"] = count(job.num_ranks);
  out["num_hosts"] = count(job.num_hosts);
  out["parameters"] = count(job.parameters);
  out["global_batch"] = count(job.global_batch);
  out["planned_steps"] = count(job.planned_steps);
  const JobStatus::Step s = job.step.value_or(JobStatus::Step());
  out["step"] = job.step ? Json(s.step) : Json();
  const auto number = [&](double value) { return job.step ? number_or_null(value) : Json(); };
  out["epoch"] = number(s.epoch);
  out["loss"] = number(s.loss);
  out["learning_rate"] = number(s.learning_rate);
  out["steps_per_s"] = number(job.steps_per_s());
  out["samples_per_s"] = number(s.samples_per_s);
  out["remaining_s"] = number(s.remaining_s);
  out["last_step_s"] = number(s.age_s);
  out["ranks"] = Json::array();
  for (std::size_t r = 0; r < job.ranks.size(); ++r) {
    out["ranks"].push_back(rank_json(job.ranks[r], r, static_cast<int>(r) == job.slowest));
  }
  out["evaluations"] = Json::array();
  for (const JobStatus::Evaluation& e : job.evaluations) {
    out["evaluations"].push_back({{"split", e.split},
                                  {"step", e.step},
                                  {"loss", number_or_null(e.loss)},
                                  {"accuracy", e.accuracy ? Json(*e.accuracy) : Json()}});
  }
  out["warning"] = text_or_null(job.warning);
  out["save_failed"] = text_or_null(job.save_failed);
  out["error"] = text_or_null(job.error);
  return out.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace stormo::cli
