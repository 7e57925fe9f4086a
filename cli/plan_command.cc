// `stormo plan`: lists, prints, verifies, prices and simulates plans without starting anything.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <stormo/analysis/cost.h>
#include <stormo/analysis/simulate.h>
#include <stormo/analysis/verify.h>
#include <stormo/base/units.h>
#include <stormo/parallel/mirrored.h>
#include <stormo/parallel/one_device.h>
#include <stormo/plan/limits.h>
#include <stormo/schedule/builders.h>

#include "commands.h"

namespace stormo::cli {
namespace {

using nlohmann::json;
using plan::Schedule;
using plan::StepPlan;
using schedule::Builder;

struct PlanOptions {
  std::string plan;  // a builder, a strategy or a file
  std::string ranks = "4";
  int hosts = 1;
  Rank root = 0;
  std::string bytes = "1MiB";
  std::string topology;  // a file
  bool json = false;
  bool all = false;
  bool markdown = false;
};

using Plan = std::variant<Schedule, StepPlan>;
constexpr std::string_view kStrategies[] = {"one_device", "mirrored"};

struct RankRange {
  int first = 1;
  int last = 1;
};

/// "4" or "1..33".
Result<RankRange> parse_ranks(const std::string& text) {
  RankRange range;
  const char* end = text.data() + text.size();
  auto [stop, error] = std::from_chars(text.data(), end, range.first);
  range.last = range.first;
  if (error == std::errc{} && std::string_view(stop, end).starts_with("..")) {
    std::tie(stop, error) = [&] {
      const auto r = std::from_chars(stop + 2, end, range.last);
      return std::pair(r.ptr, r.ec);
    }();
  }
  if (error != std::errc{} || stop != end || range.first < 1 || range.last < range.first ||
      range.last > plan::kMaxRanks) {
    return invalid_argument(
        fmt::format("--ranks: '{}' is neither a number from 1 to {} nor a range "
                    "such as 1..33",
                    text, plan::kMaxRanks));
  }
  return range;
}

Result<int> single_ranks(const std::string& text) {
  STORMO_ASSIGN_OR_RETURN(const RankRange range, parse_ranks(text));
  if (range.first == range.last) return range.first;
  return invalid_argument("--ranks: a range needs 'verify --all'; give one number");
}

Result<std::string> read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return io_error("cannot read '" + path + "'");
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (file.bad()) return io_error("cannot read '" + path + "'");
  return text;
}

Result<Plan> parse_plan_file(const std::string& path) {
  STORMO_ASSIGN_OR_RETURN(const std::string text, read_file(path));
  // the first word that is no comment says what the text is
  std::size_t at = text.find_first_not_of(" \t\r\n");
  while (at != std::string::npos && text[at] == '#') {
    at = text.find('\n', at);
    if (at != std::string::npos) at = text.find_first_not_of(" \t\r\n", at);
  }
  if (at != std::string::npos && std::string_view(text).substr(at).starts_with("step_plan")) {
    auto p = plan::parse_step_plan(text);
    if (!p.ok()) return p.status().within(path);
    return Plan(std::move(*p));
  }
  auto s = plan::parse_schedule(text);
  if (!s.ok()) return s.status().within(path);
  return Plan(std::move(*s));
}

/// A model that step plans can be shown for: three layers of a small perceptron.
plan::ModelShape sample_model() {
  return {{{"fc1", 784 * 512 + 512, 2 * 784 * 512},
           {"fc2", 512 * 512 + 512, 2 * 512 * 512},
           {"fc3", 512 * 10 + 10, 2 * 512 * 10}}};
}

Status unknown_plan(const std::string& name) {
  std::vector<std::string_view> names(std::begin(kStrategies), std::end(kStrategies));
  for (const Builder& b : schedule::builders()) names.push_back(b.name);
  const std::string_view near = nearest_match(name, names);
  return Status(Code::kNotFound,
                fmt::format("'{}' is neither an algorithm nor a file; {}", name,
                            near.empty() ? "'stormo plan list' prints all names"
                                         : fmt::format("did you mean '{}'?", near)));
}

Result<Plan> load(const PlanOptions& o) {
  if (o.plan.empty()) return invalid_argument("give the name of an algorithm or a file");
  STORMO_ASSIGN_OR_RETURN(const int ranks, single_ranks(o.ranks));
  if (o.plan == "one_device") return Plan(parallel::one_device(sample_model()));
  if (o.plan == "mirrored") {
    auto p = parallel::compose(parallel::one_device(sample_model()), parallel::mirrored(ranks));
    if (!p.ok()) return p.status();
    return Plan(std::move(*p));
  }
  if (const auto builder = schedule::find_builder(o.plan); builder.ok()) {
    auto s = (*builder)->build(ranks, o.hosts, o.root);
    if (!s.ok()) return s.status();
    return Plan(std::move(*s));
  }
  std::error_code ignored;
  if (std::filesystem::is_regular_file(o.plan, ignored)) return parse_plan_file(o.plan);
  return unknown_plan(o.plan);
}

/// A schedule that may be executed: what cost and simulate work on.
Result<Schedule> load_verified(const PlanOptions& o) {
  STORMO_ASSIGN_OR_RETURN(Plan p, load(o));
  if (std::holds_alternative<StepPlan>(p)) {
    return invalid_argument("'" + o.plan + "' is a step plan; this command takes a collective");
  }
  Schedule s = std::get<Schedule>(std::move(p));
  STORMO_RETURN_IF_ERROR(analysis::verify(s).within(o.plan));
  return s;
}

Result<std::int64_t> buffer_bytes(const PlanOptions& o, const Schedule& s) {
  auto bytes = parse_bytes(o.bytes);
  if (!bytes.ok()) return bytes.status().within("--bytes");
  double transfers = 1;
  for (const plan::Round& round : s.rounds) transfers += static_cast<double>(round.size());
  if (static_cast<double>(*bytes) * std::max(transfers, double{plan::kMaxChunks}) > 0x1p62) {
    return invalid_argument("--bytes: " + o.bytes + " is too large for this plan; give less");
  }
  return static_cast<std::int64_t>(*bytes);
}

using Rows = std::vector<std::vector<std::string>>;

/// The first row is the head.
void print_table(const Rows& rows, bool markdown) {
  std::vector<std::size_t> widths(rows.front().size());
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (std::size_t r = 0; r < rows.size(); ++r) {
    std::string line = markdown ? "|" : "";
    for (std::size_t i = 0; i < rows[r].size(); ++i) {
      line += markdown ? fmt::format(" {} |", rows[r][i])
                       : fmt::format("{:<{}}  ", rows[r][i], widths[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    fmt::print("{}\n", line);
    if (markdown && r == 0) {
      std::string rule = "|";
      for (std::size_t i = 0; i < widths.size(); ++i) rule += "---|";
      fmt::print("{}\n", rule);
    }
  }
}

void print_json(const json& object) {
  // names come from files and may hold bytes that are no UTF-8
  fmt::print("{}\n", object.dump(-1, ' ', false, json::error_handler_t::replace));
}

std::string bytes_text(std::int64_t bytes) {
  return format_bytes(static_cast<std::uint64_t>(bytes));
}

Status list(const PlanOptions& o) {
  Rows rows{{"algorithm", "goal", "needs", "what it does"}};
  for (const Builder& b : schedule::builders()) {
    const std::string needs = std::string("--ranks") + (b.takes_hosts ? " --hosts" : "") +
                              (b.takes_root ? " --root" : "");
    rows.push_back(
        {std::string(b.name), std::string(to_string(b.goal)), needs, std::string(b.description)});
    if (o.json) {
      print_json({{"name", b.name},
                  {"goal", to_string(b.goal)},
                  {"takes_hosts", b.takes_hosts},
                  {"takes_root", b.takes_root},
                  {"description", b.description}});
    }
  }
  if (o.json) return {};
  print_table(rows, false);
  fmt::print("\nStep plans, for a sample model: one_device, mirrored (--ranks)\n");
  return {};
}

Status show(const PlanOptions& o) {
  STORMO_ASSIGN_OR_RETURN(const Plan p, load(o));
  const auto text = std::visit([](const auto& x) { return to_text(x); }, p);
  const auto number = std::visit([](const auto& x) { return hash(x); }, p);
  const char* kind = std::holds_alternative<Schedule>(p) ? "schedule" : "step_plan";
  if (o.json) {
    print_json({{"kind", kind}, {"hash", fmt::format("{:016x}", number)}, {"text", text}});
  } else {
    fmt::print("{}# hash {:016x}\n", text, number);
  }
  return {};
}

void report_verified(const PlanOptions& o, const std::string& what, const Status& st) {
  if (o.json) {
    print_json({{"plan", what}, {"ok", st.ok()}, {"error", st.message()}});
  } else if (st.ok()) {
    fmt::print("{}: ok\n", what);
  }
}

/// Every builder for every size of the range, every division into hosts and the outermost roots.
Status verify_all(const PlanOptions& o) {
  STORMO_ASSIGN_OR_RETURN(const RankRange range, parse_ranks(o.ranks));
  for (const Builder& b : schedule::builders()) {
    int verified = 0;
    for (int ranks = range.first; ranks <= range.last; ++ranks) {
      for (int hosts = 1; hosts <= (b.takes_hosts ? ranks : 1); ++hosts) {
        if (ranks % hosts != 0) continue;
        for (const Rank root : {0, ranks - 1}) {
          if (root != 0 && !b.takes_root) continue;
          STORMO_ASSIGN_OR_RETURN(const Schedule s, b.build(ranks, hosts, root));
          const Status st = analysis::verify(s).within(
              fmt::format("{} ranks={} hosts={} root={}", b.name, ranks, hosts, root));
          if (!st.ok()) report_verified(o, std::string(b.name), st);
          STORMO_RETURN_IF_ERROR(st);
          ++verified;
        }
      }
    }
    report_verified(o, fmt::format("{} ({} schedules)", b.name, verified), {});
  }
  return {};
}

Status verify(const PlanOptions& o) {
  if (o.all && !o.plan.empty()) return invalid_argument("give either a plan or --all, not both");
  if (o.all) return verify_all(o);
  STORMO_ASSIGN_OR_RETURN(const Plan p, load(o));
  const auto* s = std::get_if<Schedule>(&p);
  const Status st = s != nullptr ? analysis::verify(*s) : validate(std::get<StepPlan>(p));
  report_verified(o, o.plan, st);
  return st.within(o.plan);
}

Result<plan::Topology> load_topology(const PlanOptions& o, int ranks) {
  if (!o.topology.empty()) {
    STORMO_ASSIGN_OR_RETURN(const std::string text, read_file(o.topology));
    const auto t = plan::parse_topology(text);
    if (!t.ok()) return t.status().within(o.topology);
    if (t->ranks() == ranks) return *t;
    return invalid_argument(
        fmt::format("{}: the topology has {} ranks, the plan {}", o.topology, t->ranks(), ranks));
  }
  if (o.hosts < 1 || ranks % o.hosts != 0) {
    return invalid_argument(
        fmt::format("--hosts: {} ranks cannot be spread evenly over {} hosts", ranks, o.hosts));
  }
  // shared memory inside a host, gigabit Ethernet between hosts
  return plan::Topology::uniform(o.hosts, ranks / o.hosts, {5e-7, 1e-10}, {2e-5, 8.4e-9}, 1e-10);
}

Status cost(const PlanOptions& o) {
  STORMO_ASSIGN_OR_RETURN(const Schedule s, load_verified(o));
  STORMO_ASSIGN_OR_RETURN(const std::int64_t bytes, buffer_bytes(o, s));
  STORMO_ASSIGN_OR_RETURN(const plan::Topology t, load_topology(o, s.ranks));
  const analysis::Cost c = analysis::cost(s, bytes);
  const analysis::InterHostCost between = analysis::inter_host_cost(s, t, bytes);
  if (o.json) {
    print_json({{"plan", s.name},
                {"ranks", s.ranks},
                {"hosts", t.hosts()},
                {"bytes", bytes},
                {"rounds", c.rounds},
                {"messages", c.messages},
                {"total_bytes", c.total_bytes},
                {"max_bytes_sent", c.max_bytes_sent},
                {"max_bytes_received", c.max_bytes_received},
                {"max_bytes_reduced", c.max_bytes_reduced},
                {"busiest_rank", c.busiest},
                {"inter_host_messages", between.messages},
                {"inter_host_bytes", between.total_bytes},
                {"max_host_bytes_sent", between.max_host_bytes_sent},
                {"max_host_bytes_received", between.max_host_bytes_received}});
    return {};
  }
  fmt::print("{}: {} ranks on {} host(s), {}\n", s.name, s.ranks, t.hosts(), bytes_text(bytes));
  Rows rows{{"rounds", fmt::to_string(c.rounds)},
            {"messages", fmt::to_string(c.messages)},
            {"bytes in all", bytes_text(c.total_bytes)},
            {"most sent by a rank", bytes_text(c.max_bytes_sent)},
            {"most received by a rank", bytes_text(c.max_bytes_received)},
            {"most reduced by a rank", bytes_text(c.max_bytes_reduced)},
            {"busiest rank", fmt::to_string(c.busiest)}};
  if (t.hosts() > 1) {
    rows.push_back({"messages between hosts", fmt::to_string(between.messages)});
    rows.push_back({"bytes between hosts", bytes_text(between.total_bytes)});
    rows.push_back({"most sent by a host", bytes_text(between.max_host_bytes_sent)});
    rows.push_back({"most received by a host", bytes_text(between.max_host_bytes_received)});
  }
  print_table(rows, false);
  return {};
}

double microseconds(Duration d) { return std::chrono::duration<double, std::micro>(d).count(); }

Status simulate(const PlanOptions& o) {
  STORMO_ASSIGN_OR_RETURN(const Schedule s, load_verified(o));
  STORMO_ASSIGN_OR_RETURN(const std::int64_t bytes, buffer_bytes(o, s));
  STORMO_ASSIGN_OR_RETURN(const plan::Topology t, load_topology(o, s.ranks));
  ManualClock clock;
  const TimePoint begin = clock.now();
  const auto sim = analysis::simulate(
      s, t, bytes, clock, o.json ? analysis::Timeline::kKeep : analysis::Timeline::kDrop);
  if (o.json) {
    for (const auto& x : sim.timeline) {
      print_json({{"event", "transfer"},
                  {"round", x.round},
                  {"from", x.transfer.from},
                  {"to", x.transfer.to},
                  {"chunk", x.transfer.chunk},
                  {"bytes", x.bytes},
                  {"start_us", microseconds(x.start - begin)},
                  {"end_us", microseconds(x.end - begin)}});
    }
    std::vector<double> finish;
    for (const Duration d : sim.finish) finish.push_back(microseconds(d));
    print_json({{"event", "end"},
                {"plan", s.name},
                {"ranks", s.ranks},
                {"hosts", t.hosts()},
                {"bytes", bytes},
                {"duration_us", microseconds(sim.duration)},
                {"finish_us", finish}});
    return {};
  }
  fmt::print("{}: {} ranks on {} host(s), {}: {}\n", s.name, s.ranks, t.hosts(), bytes_text(bytes),
             format_duration(sim.duration));
  constexpr std::size_t kShown = 16;
  Rows rows{{"rank", "done after"}};
  for (std::size_t r = 0; r < std::min(sim.finish.size(), kShown); ++r) {
    rows.push_back({fmt::to_string(r), format_duration(sim.finish[r])});
  }
  print_table(rows, false);
  if (sim.finish.size() > kShown) fmt::print("... --json has all {} ranks\n", sim.finish.size());
  return {};
}

/// The cost table of docs/algorithms.md.
Status table(const PlanOptions& o) {
  constexpr int kRanks = 8, kHosts = 2;
  constexpr std::int64_t kBytes = 1 << 20;
  Rows rows{{"algorithm", "rounds", "n = 8", "busiest rank sends", "n = 8, K = 1 MiB", "messages",
             "all ranks send"}};
  for (const Builder& b : schedule::builders()) {
    STORMO_ASSIGN_OR_RETURN(const Schedule s, b.build(kRanks, kHosts));
    const analysis::Cost c = analysis::cost(s, kBytes);
    const std::string code = o.markdown ? "`" : "";
    rows.push_back({code + std::string(b.name) + code, std::string(b.rounds_formula),
                    fmt::to_string(c.rounds), std::string(b.bytes_formula),
                    bytes_text(c.max_bytes_sent), fmt::to_string(c.messages),
                    bytes_text(c.total_bytes)});
  }
  print_table(rows, o.markdown);
  return {};
}

using Action = Status (*)(const PlanOptions&);

/// A plan that fails is the run's failure; everything else is what the user asked for.
int exit_code_of(const Status& st) {
  if (st.ok()) return kExitOk;
  return st.code() == Code::kBadPlan ? kExitFailed : kExitUsage;
}

CLI::App* add(CLI::App& plan, Invocation& invocation, const std::shared_ptr<PlanOptions>& o,
              const char* name, const char* description, Action action) {
  CLI::App* command = plan.add_subcommand(name, description);
  command->callback([&invocation, o, action] {
    const Status st = action(*o);
    if (!st.ok()) fmt::print(stderr, "stormo plan: {}\n", st.message());
    invocation.exit_code = exit_code_of(st);
  });
  return command;
}

}  // namespace

void add_plan_command(CLI::App& app, Invocation& invocation) {
  const auto o = std::make_shared<PlanOptions>();
  CLI::App* plan = app.add_subcommand("plan", "Print, verify, price and simulate plans");
  plan->require_subcommand(1);
  CLI::App* list_command = add(*plan, invocation, o, "list", "All algorithms", list);
  CLI::App* show_command = add(*plan, invocation, o, "show", "Print the text of a plan", show);
  CLI::App* verify_command =
      add(*plan, invocation, o, "verify", "Check that a plan reaches its goal safely", verify);
  CLI::App* cost_command = add(*plan, invocation, o, "cost", "What a collective moves", cost);
  CLI::App* simulate_command =
      add(*plan, invocation, o, "simulate", "Play a collective in virtual time", simulate);
  CLI::App* table_command =
      add(*plan, invocation, o, "table", "The costs of all algorithms", table);
  table_command->add_flag("--markdown", o->markdown, "As in docs/algorithms.md");
  verify_command->add_flag("--all", o->all, "Every algorithm, for each of --ranks");

  for (CLI::App* c : {show_command, verify_command, cost_command, simulate_command}) {
    auto* name = c->add_option("plan", o->plan, "Name from 'stormo plan list', or a file");
    if (c != verify_command) name->required();
    c->add_option("-n,--ranks", o->ranks, "Number of ranks; verify --all takes 1..33")
        ->capture_default_str();
    c->add_option("--hosts", o->hosts, "Hosts that the ranks are spread over evenly")
        ->capture_default_str();
    c->add_option("--root", o->root, "Root of a broadcast")->capture_default_str();
  }
  for (CLI::App* c : {cost_command, simulate_command}) {
    c->add_option("--bytes", o->bytes, "Size of the buffer: 4096, 64KiB, 1MiB")
        ->capture_default_str();
    c->add_option("--topology", o->topology,
                  "File that describes hosts and links; default: shared memory and 1 Gbit/s");
  }
  for (CLI::App* c : {list_command, show_command, verify_command, cost_command, simulate_command}) {
    c->add_flag("--json", o->json, "One JSON object per line");
  }
}

}  // namespace stormo::cli
