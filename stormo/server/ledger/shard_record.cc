#include <stormo/server/ledger/shard_record.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <utility>

#include <stormo/base/rng.h>

namespace stormo::server {
namespace {

constexpr std::string_view kMagic = "stormo shard record 3\n";
static_assert(std::endian::native == std::endian::little, "the file is little-endian");
static_assert(sizeof(ShardEvent) == 32 && std::is_trivially_copyable_v<ShardEvent>);

/// An event in the file.
struct Row {
  ShardEvent event;
  std::uint64_t check = 0;
};
static_assert(sizeof(Row) == 40);

std::uint64_t check_of(const ShardEvent& event, std::uint64_t before) {
  return fnv1a({reinterpret_cast<const char*>(&event), sizeof event}, before);
}

Status damaged(const std::string& path, const std::string& why) {
  return Status(Code::kCorrupt, "'" + path + "' " + why);
}

}  // namespace

std::uint64_t record_origin(std::uint64_t run, int worker) {
  return fnv1a(std::to_string(worker), run);
}

std::string record_path(const std::string& directory, int worker) {
  return directory + "/worker-" + std::to_string(worker) + ".events";
}

Result<ShardRecorder> ShardRecorder::create(const std::string& path, std::uint64_t origin) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << kMagic;
  if (!file) return errno_error("cannot write the record '" + path + "'");
  return ShardRecorder(path, std::move(file), origin);
}

void ShardRecorder::add(const ShardEvent& event) {
  check_ = check_of(event, check_);
  const Row row{event, check_};
  file_.write(reinterpret_cast<const char*>(&row), sizeof row);
}

Status ShardRecorder::flush() {
  file_.flush();
  return file_ ? Status() : errno_error("cannot write the record '" + path_ + "'");
}

Result<std::vector<ShardEvent>> read_shard_record(const std::string& path, std::uint64_t origin) {
  std::error_code failed;
  if (!std::filesystem::is_regular_file(path, failed)) {
    return io_error("cannot read the record '" + path + "': there is no such file");
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) return errno_error("cannot read the record '" + path + "'");
  std::string magic(kMagic.size(), '\0');
  if (!file.read(magic.data(), static_cast<std::streamsize>(magic.size())) || magic != kMagic) {
    return damaged(path, "is no record of a run (stormo train --record)");
  }
  std::vector<ShardEvent> events;
  for (Row row; file.read(reinterpret_cast<char*>(&row), sizeof row); origin = row.check) {
    if (row.check != check_of(row.event, origin) || row.event.kind > ShardEvent::Kind::kRead) {
      return damaged(path, events.empty() ? "is of another run or another worker"
                                          : "is damaged at event " + std::to_string(events.size()));
    }
    events.push_back(row.event);
  }
  return events;
}

}  // namespace stormo::server
