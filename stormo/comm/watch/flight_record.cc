#include <stormo/comm/watch/flight_record.h>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace stormo::comm {
namespace {

using json = nlohmann::ordered_json;

constexpr int kVersion = 1;
constexpr std::size_t kShownFrames = 6;

double seconds(Duration d) { return std::chrono::duration<double>(d).count(); }

std::string dump(const json& value, int indent = -1) {
  return value.dump(indent, ' ', false, json::error_handler_t::replace);
}

json to_json(const Activity::Record& record, const TickScale& scale) {
  const Operation& o = record.operation;
  json out = {{"sequence", o.sequence},
              {"kind", name_of(o)},
              {"reduction", reduces(o.kind) ? json(to_string(o.op)) : json()},
              {"count", o.count},
              {"dtype", to_string(o.dtype)},
              {"bytes", o.count * size_of(o.dtype)},
              {"buffers", o.num_buffers},
              {"root", o.root},
              {"tag", o.tag},
              {"state", record.running() ? "running" : "done"},
              {"began_s_ago", seconds(scale.age(record.began))}};
  if (!record.running()) {
    out["took_s"] = seconds(scale.between(record.began, record.ended));
  }
  return out;
}

json to_json(const ThreadState& thread) {
  return {{"id", thread.id},
          {"name", thread.name},
          {"state", std::string(1, thread.state)},
          {"waits_in", thread.waits_in},
          {"system_call", thread.system_call},
          {"stack", thread.stack}};
}

json to_json(const std::vector<ThreadState>& threads) {
  json out = json::array();
  for (const ThreadState& thread : threads) out.push_back(to_json(thread));
  return out;
}

json to_json(const Activities::Group& group, bool whole, const TickScale& scale) {
  const Activity::Record last = group.activity->last();
  const bool none = last.began == 0;
  json out = {{"group", group.name},
              {"rank", group.rank},
              {"size", group.size},
              {"collectives", last.place},
              {"last", none ? "no operation yet" : to_text(last.operation)},
              {"running", last.running()},
              {"message", is_message(last.operation.kind)},
              {"peer", last.operation.root}};
  if (!whole) return out;
  out["operations"] = json::array();
  for (const Activity::Record& r : group.activity->records()) {
    out["operations"].push_back(to_json(r, scale));
  }
  return out;
}

}  // namespace

std::string to_json(const RankRecord& record, const Activities& activities,
                    const TickScale& scale) {
  json out = {{"rank", record.rank},
              {"identity", record.identity},
              {"doing", activities.text()},
              {"idle_s", seconds(activities.pace().idle)},
              {"groups", json::array()}};
  for (const Activities::Group& group : activities.groups()) {
    out["groups"].push_back(to_json(group, record.whole, scale));
  }
  if (!record.threads.empty()) out["threads"] = to_json(record.threads);
  for (const Neighbour& n : record.neighbours) {
    out["neighbours"].push_back(
        {{"rank", n.rank}, {"pid", n.pid}, {"seen", n.seen}, {"threads", to_json(n.threads)}});
  }
  return dump(out);
}

Result<protocol::RankReport> parse_rank_report(std::string_view text) {
  const json in = json::parse(text, nullptr, /*allow_exceptions=*/false);
  try {
    protocol::RankReport report;
    in.at("rank").get_to(report.rank);
    in.at("identity").get_to(report.identity);
    in.at("doing").get_to(report.doing);
    report.idle = std::chrono::duration_cast<Duration>(
        std::chrono::duration<double>(in.at("idle_s").get<double>()));
    report.answered = true;
    for (const json& group : in.at("groups")) {
      protocol::GroupReport& g = report.groups.emplace_back();
      group.at("group").get_to(g.group);
      group.at("rank").get_to(g.rank);
      group.at("size").get_to(g.size);
      group.at("collectives").get_to(g.place);
      group.at("last").get_to(g.operation);
      group.at("running").get_to(g.running);
      group.at("message").get_to(g.is_message);
      group.at("peer").get_to(g.peer);
    }
    return report;
  } catch (const json::exception& e) {
    return Status(Code::kCorrupt, fmt::format("report of a rank: {}", e.what()));
  }
}

std::string main_stack_of(std::string_view text) {
  const json in = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!in.is_object() || !in.contains("threads") || in["threads"].empty()) return {};
  const json& stack = in["threads"].front()["stack"];
  std::vector<std::string> shown;
  for (const json& frame : stack) {
    if (shown.size() < kShownFrames) shown.push_back(frame.get<std::string>());
  }
  return fmt::format("{}", fmt::join(shown, " < "));
}

Status write_flight_file(const std::string& path, const protocol::Stall& stall,
                         const std::vector<std::string>& records) {
  namespace fs = std::filesystem;
  json file = {{"format", "stormo flight record"},
               {"version", kVersion},
               {"written", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)))},
               {"cause", stall.text},
               {"missing", stall.missing},
               {"waiting", stall.waiting},
               {"silent", stall.silent},
               {"ranks", json::array()}};
  for (const std::string& record : records) {
    json parsed = json::parse(record, nullptr, /*allow_exceptions=*/false);
    if (parsed.is_object()) file["ranks"].push_back(std::move(parsed));
  }
  std::error_code failed;
  const fs::path folder = fs::path(path).parent_path();
  if (!folder.empty()) fs::create_directories(folder, failed);
  const std::string staged = fmt::format("{}.{}", path, ::getpid());
  errno = 0;
  std::ofstream out(staged);
  out << dump(file, 1) << "\n";
  out.close();
  if (!out) return errno_error("cannot write " + path);
  fs::rename(staged, path, failed);
  return failed ? io_error("cannot write " + path + ": " + failed.message()) : ok_status();
}

}  // namespace stormo::comm
