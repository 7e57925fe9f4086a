#include <stormo/server/shard_record.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <utility>

namespace stormo::server {
namespace {

constexpr std::string_view kMagic = "stormo shard record 1\n";
static_assert(std::endian::native == std::endian::little, "the file is little-endian");
static_assert(sizeof(ShardEvent) == 24 && std::is_trivially_copyable_v<ShardEvent>);

}  // namespace

std::string record_path(const std::string& directory, int worker) {
  return directory + "/worker-" + std::to_string(worker) + ".events";
}

Result<ShardRecorder> ShardRecorder::create(const std::string& path) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << kMagic;
  if (!file) return errno_error("cannot write the record '" + path + "'");
  return ShardRecorder(path, std::move(file));
}

void ShardRecorder::add(const ShardEvent& event) {
  file_.write(reinterpret_cast<const char*>(&event), sizeof event);
}

Status ShardRecorder::flush() {
  file_.flush();
  return file_ ? Status() : errno_error("cannot write the record '" + path_ + "'");
}

Result<std::vector<ShardEvent>> read_shard_record(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return errno_error("cannot read the record '" + path + "'");
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  if (!text.starts_with(kMagic)) {
    return Status(Code::kCorrupt, "'" + path + "' is no record of a run (stormo train --record)");
  }
  const std::size_t count = (text.size() - kMagic.size()) / sizeof(ShardEvent);
  std::vector<ShardEvent> events(count);
  if (count > 0) {
    std::memcpy(events.data(), text.data() + kMagic.size(), count * sizeof(ShardEvent));
  }
  for (const ShardEvent& e : events) {
    if (e.kind > ShardEvent::Kind::kRead) {
      return Status(Code::kCorrupt, "'" + path + "' has an unknown kind of event");
    }
  }
  return events;
}

}  // namespace stormo::server
