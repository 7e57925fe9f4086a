#include <stormo/observe/cost.h>

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include <stormo/base/replace_file.h>
#include <stormo/base/units.h>

namespace stormo::observe {
namespace {

using nlohmann::json;

constexpr int kLedgerSchema = 1;
constexpr double kSecondsPerHour = 3600;
constexpr Duration kLookEvery = std::chrono::seconds(1);
constexpr Duration kWriteEvery = std::chrono::seconds(5);

std::string time_of(double seconds) {
  return format_duration(
      std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds)));
}

double share_wasted(const CostRecord& r) { return r.wall_s > 0 ? r.wasted_s / r.wall_s : 0; }

double sum_of(const std::map<std::string, double>& joules) {
  double sum = 0;
  for (const auto& [source, value] : joules) sum += value;
  return sum;
}

template <class Value>
json or_null(const std::optional<Value>& value) {
  return value ? json(*value) : json();
}

}  // namespace

std::string cost_json(const CostRecord& r) {
  return json{{"event", "cost"},
              {"wall_s", r.wall_s},
              {"wasted_s", r.wasted_s},
              {"wasted_share", share_wasted(r)},
              {"faults", r.faults},
              {"host_hours", r.host_hours},
              {"core_hours", r.core_hours},
              {"price", or_null(r.price)},
              {"joules", r.no_energy.empty() ? json(r.joules) : json()},
              {"joules_per_sample", or_null(r.joules_per_sample)},
              {"no_energy", r.no_energy.empty() ? json() : json(r.no_energy)}}
      .dump();
}

std::map<std::string, std::string> cost_rows(const CostRecord& r) {
  std::map<std::string, std::string> out;
  std::string used =
      fmt::format("{:.4g} host hours, {:.4g} core hours", r.host_hours, r.core_hours);
  if (r.price) used += fmt::format(", price {:.4g}", *r.price);
  out["cost"] = used;
  if (!r.no_energy.empty()) {
    out["energy"] = "not measurable here: " + r.no_energy;
  } else {
    std::string energy = fmt::format("{:.4g} J", sum_of(r.joules));
    if (r.joules_per_sample) energy += fmt::format(", {:.4g} J per sample", *r.joules_per_sample);
    out["energy"] = energy + ", of all that ran on this host";
  }
  if (r.faults > 0)
    out["lost by faults"] =
        fmt::format("{} of {} ({:.1f} %), {} {}", time_of(r.wasted_s), time_of(r.wall_s),
                    100 * share_wasted(r), r.faults, r.faults == 1 ? "fault" : "faults");
  return out;
}

std::string to_text(const CostLedger& l) {
  return json{{"schema", kLedgerSchema},
              {"wall_s", l.wall_s},
              {"saved_wall_s", l.saved_wall_s},
              {"wasted_s", l.wasted_s},
              {"faults", l.faults}}
             .dump() +
         "\n";
}

Result<CostLedger> parse_cost_ledger(std::string_view text) {
  const json in = json::parse(text, nullptr, /*allow_exceptions=*/false);
  CostLedger out;
  try {
    if (in.at("schema") != kLedgerSchema)
      return Status(Code::kCorrupt, "it is of another version of Stormo");
    in.at("wall_s").get_to(out.wall_s);
    in.at("saved_wall_s").get_to(out.saved_wall_s);
    in.at("wasted_s").get_to(out.wasted_s);
    in.at("faults").get_to(out.faults);
  } catch (const json::exception& e) {
    return Status(Code::kCorrupt, e.what());
  }
  const bool sound = out.saved_wall_s >= 0 && out.wall_s >= out.saved_wall_s && out.wasted_s >= 0 &&
                     out.wasted_s <= out.wall_s && out.faults >= 0;
  return sound ? Result<CostLedger>(out)
               : Status(Code::kCorrupt, "its times contradict each other");
}

CostLedger resumed(const CostLedger& before) {
  CostLedger out = before;
  out.wasted_s += before.wall_s - before.saved_wall_s;
  out.faults += before.wall_s > before.saved_wall_s ? 1 : 0;
  out.saved_wall_s = before.wall_s;
  return out;
}

CostMeter::CostMeter(Options options)
    : options_(std::move(options)),
      clock_(options_.clock != nullptr ? *options_.clock : real_clock_),
      saved_wall_s_(options_.before.saved_wall_s) {
  record_.no_energy = options_.no_energy;
  record_.wall_s = options_.before.wall_s;
  record_.wasted_s = options_.before.wasted_s;
  record_.faults = options_.before.faults;
}

CostRecord CostMeter::record() const {
  const std::lock_guard lock(mutex_);
  return record_;
}

double CostMeter::wall_s() const {
  return options_.before.wall_s + std::chrono::duration<double>(clock_.now() - began_).count();
}

void CostMeter::on_start(const StartRecord& record) {
  start_ = record;
  began_ = looked_ = written_ = clock_.now();
}

void CostMeter::look(const StepRecord& step) {
  if (!start_) return;
  samples_ = step.samples - start_->first_step * start_->global_batch;
  if (checkpoint_ != step.checkpoint) {
    // the first one that is seen may be that from which the run goes on
    const bool is_new = checkpoint_.has_value() || start_->first_step == 0;
    checkpoint_ = step.checkpoint;
    if (is_new && !step.checkpoint.empty()) {
      saved_wall_s_ = wall_s();
      written_ = {};
    }
  }
  const TimePoint now = clock_.now();
  if (now - looked_ >= kLookEvery) {
    looked_ = now;
    measure();
  }
  if (now - written_ >= kWriteEvery && !step.checkpoint.empty()) {
    written_ = now;
    write_ledger();
  }
}

void CostMeter::measure() {
  CostRecord r;
  r.wall_s = wall_s();
  r.wasted_s = options_.before.wasted_s;
  r.faults = options_.before.faults;
  r.host_hours = r.wall_s * start_->hosts / kSecondsPerHour;
  r.core_hours = r.wall_s * start_->ranks * options_.threads_per_rank / kSecondsPerHour;
  if (options_.price_per_host_hour) r.price = r.host_hours * *options_.price_per_host_hour;
  r.no_energy = options_.no_energy;
  if (r.no_energy.empty() && start_->hosts > 1)
    r.no_energy =
        fmt::format("the job has {} hosts, and only that of rank 0 is read", start_->hosts);
  if (options_.joules) r.joules = options_.joules();
  if (r.no_energy.empty() && samples_ > 0)
    r.joules_per_sample = sum_of(r.joules) / static_cast<double>(samples_);
  const std::lock_guard lock(mutex_);
  record_ = std::move(r);
}

void CostMeter::on_end(const EndRecord& record) {
  if (!start_) return;
  samples_ = record.samples - start_->first_step * start_->global_batch;
  measure();
  if (record.checkpoint.empty()) return;
  saved_wall_s_ = wall_s();
  write_ledger();
}

void CostMeter::on_error(const ErrorRecord&) {
  if (!start_) return;
  measure();
  if (checkpoint_ && !checkpoint_->empty()) write_ledger();
}

/// Where it cannot be written the next start knows less; the run goes on.
void CostMeter::write_ledger() const {
  if (options_.ledger_file.empty()) return;
  const CostLedger ledger{.wall_s = wall_s(),
                          .saved_wall_s = saved_wall_s_,
                          .wasted_s = options_.before.wasted_s,
                          .faults = options_.before.faults};
  (void)replace_file(options_.ledger_file, [&](std::ostream& out) { out << to_text(ledger); });
}

void CostReport::on_end(const EndRecord&) {
  const CostRecord record = meter_.record();
  if (as_json_) {
    out_ << cost_json(record) << std::endl;
    return;
  }
  for (const auto& [name, value] : cost_rows(record))
    out_ << fmt::format("  {:<16} {}\n", name, value);
  out_ << std::flush;
}

}  // namespace stormo::observe
