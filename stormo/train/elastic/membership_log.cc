#include <stormo/train/elastic/membership_log.h>

#include <charconv>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <stormo/base/json_depth.h>
#include <stormo/checkpoint/file/checked_file.h>

namespace stormo::train {
namespace {

constexpr std::uint64_t kMaxBytes = 64u << 20;

std::uint64_t number_of(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number_unsigned() ? found->get<std::uint64_t>() : 0;
}

/// 0: there is none.
std::uint64_t hash_of(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  std::uint64_t hash = 0;
  if (found == object.end() || !found->is_string()) return hash;
  const auto& digits = found->get_ref<const std::string&>();
  std::from_chars(digits.data(), digits.data() + digits.size(), hash, 16);
  return hash;
}

std::string line_of(const protocol::ElasticRecord& record, int hosts) {
  nlohmann::ordered_json line = {{"epoch", record.epoch},
                                 {"step", record.base_step},
                                 {"ranks", record.members.size()},
                                 {"hosts", hosts},
                                 {"members", nlohmann::json::array()},
                                 {"donors", record.donors},
                                 {"state_hash", nullptr},
                                 {"plan_hash", fmt::format("{:016x}", record.plan_hash)}};
  for (const protocol::ElasticEntry& m : record.members) {
    line["members"].push_back({{"name", m.id.identity}, {"start", m.id.incarnation}});
  }
  if (record.state_hash != 0) line["state_hash"] = fmt::format("{:016x}", record.state_hash);
  return line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

/// What line_of() has written; nothing else is a line of a log.
std::optional<protocol::ElasticRecord> record_in(const std::string& text) {
  if (!json_nests_within(text)) return {};
  const auto line = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto is_list = [&](const char* key) { return line.contains(key) && line[key].is_array(); };
  if (!line.is_object() || !is_list("members") || !is_list("donors")) return {};
  protocol::ElasticRecord record{.epoch = static_cast<Epoch>(number_of(line, "epoch")),
                                 .base_step = number_of(line, "step")};
  for (const nlohmann::json& m : line["members"]) {
    if (!m.is_object() || !m.contains("name") || !m["name"].is_string()) return {};
    record.members.push_back({.id = {m["name"].get<std::string>(), number_of(m, "start")}});
  }
  for (const nlohmann::json& donor : line["donors"]) {
    if (!donor.is_string()) return {};
    record.donors.push_back(donor.get<std::string>());
    if (!record.rank_of(record.donors.back())) return {};
  }
  if (record.epoch == 0 || record.donors.empty()) return {};
  record.state_hash = hash_of(line, "state_hash");
  record.plan_hash = hash_of(line, "plan_hash");
  return record;
}

}  // namespace

std::string membership_log_in(const std::string& folder) { return folder + "/membership.jsonl"; }

// One write for each line: nobody finds half of one.
Status log_membership(const std::string& path, const protocol::ElasticRecord& record, int hosts,
                      bool begins) {
  std::error_code no_folder;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), no_folder);
  std::ofstream file(path, begins ? std::ios::trunc : std::ios::app);
  file << line_of(record, hosts) << std::flush;
  if (file) return {};
  return Status(Code::kIo, "cannot write '" + path + "'");
}

Result<std::vector<protocol::ElasticRecord>> read_membership(const std::string& path) {
  STORMO_ASSIGN_OR_RETURN(const std::string text, checkpoint::read_text_file(path, kMaxBytes));
  std::vector<protocol::ElasticRecord> records;
  std::istringstream lines(text);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    std::optional<protocol::ElasticRecord> record = record_in(line);
    const bool begins = record && (records.empty() || record->epoch <= records.back().epoch);
    if (begins) records.clear();
    const bool follows =
        record && (records.empty() || record->base_step >= records.back().base_step);
    if (!follows) {
      return Status(Code::kCorrupt, fmt::format("'{}' line {} is no record of members that follows "
                                                "on those before; a run with elastic.enabled "
                                                "writes them beside its checkpoints",
                                                path, number));
    }
    records.push_back(std::move(*record));
  }
  if (!records.empty()) return records;
  return Status(Code::kCorrupt, "'" + path + "' has no record of members");
}

}  // namespace stormo::train
