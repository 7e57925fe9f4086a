#include <stormo/train/run/run_record.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace stormo::train {
namespace {

constexpr int kFormat = 2;

std::string path_in(const std::string& directory) { return directory + "/run.json"; }

}  // namespace

Status write_run_record(const std::string& directory, const RunRecord& record) {
  const nlohmann::json text = {
      {"format", kFormat},
      {"workers", record.workers},
      {"threads", record.threads},
      {"steps", record.steps},
      {"recipe", nlohmann::json::parse(record.recipe_json, nullptr, false)},
      {"origin", record.origin},
      {"weights_hash", record.weights_hash}};
  const std::string path = path_in(directory), unfinished = path + ".new";
  std::ofstream file(unfinished);
  file << text.dump(1) << "\n";
  file.close();
  if (!file || std::rename(unfinished.c_str(), path.c_str()) != 0) {
    return errno_error("cannot write '" + path + "'");
  }
  return {};
}

Result<RunRecord> read_run_record(const std::string& directory) {
  const std::string path = path_in(directory);
  std::error_code failed;
  std::ifstream file(path);
  if (!std::filesystem::is_regular_file(path, failed) || !file) {
    return Status(Code::kNotFound, "no record of a run in '" + directory +
                                       "' (run.json); make one by stormo train --record");
  }
  const auto json = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  const bool is_record = json.is_object() && json.value("format", 0) == kFormat &&
                         json.contains("recipe") && json["recipe"].is_object() &&
                         json.value("workers", 0) > 0;
  if (!is_record) return Status(Code::kCorrupt, "'" + path + "' is no record of a run");
  return RunRecord{.workers = json["workers"].get<int>(),
                   .threads = json.value("threads", 1),
                   .steps = json.value("steps", std::int64_t{0}),
                   .recipe_json = json["recipe"].dump(),
                   .origin = json.value("origin", std::uint64_t{0}),
                   .weights_hash = json.value("weights_hash", "")};
}

Result<std::vector<std::vector<server::ShardEvent>>> read_events(const std::string& directory,
                                                                 const RunRecord& record) {
  std::vector<std::vector<server::ShardEvent>> events;
  for (int w = 0; w < record.workers; ++w) {
    const std::string path = server::record_path(directory, w);
    STORMO_ASSIGN_OR_RETURN(
        auto of_worker, server::read_shard_record(path, server::record_origin(record.origin, w)));
    const bool left =
        !of_worker.empty() && of_worker.back().kind == server::ShardEvent::Kind::kLeave;
    if (!record.weights_hash.empty() && !left) {
      return Status(Code::kCorrupt, "'" + path + "' is cut: the run went on after its last event");
    }
    events.push_back(std::move(of_worker));
  }
  return events;
}

}  // namespace stormo::train
