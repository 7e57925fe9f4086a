#include <stormo/train/elastic/membership_log.h>

#include <filesystem>
#include <fstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace stormo::train {
namespace {

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

}  // namespace stormo::train
