#include <stormo/train/record/run_record.h>

#include <nlohmann/json.hpp>
#include <ostream>

#include <stormo/base/json_depth.h>
#include <stormo/base/replace_file.h>
#include <stormo/checkpoint/file/checked_file.h>

namespace stormo::train {
namespace {

constexpr int kFormat = 2;
constexpr std::uint64_t kMaxBytes = 16u << 20;

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
  return replace_file(path_in(directory),
                      [&text](std::ostream& file) { file << text.dump(1) << "\n"; });
}

Result<RunRecord> read_run_record(const std::string& directory) {
  const std::string path = path_in(directory);
  const Result<std::string> text = checkpoint::read_text_file(path, kMaxBytes);
  if (!text.ok()) {
    return Status(Code::kNotFound, text.status().message() +
                                       ": no record of a run; make one by stormo train --record");
  }
  const auto json = json_nests_within(*text)
                        ? nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false)
                        : nlohmann::json();
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
