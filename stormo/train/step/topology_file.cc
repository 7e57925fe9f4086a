#include <stormo/train/step/topology_file.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <string_view>

#include <stormo/base/file.h>
#include <stormo/plan/mixing/mixing.h>

namespace stormo::train {
namespace {

constexpr std::string_view kFile = "file:";

}  // namespace

Result<std::string> read_topology(const std::string& topology) {
  if (!topology.starts_with(kFile)) return topology;
  const std::string path = topology.substr(kFile.size());
  const auto wrong = [&](const std::string& why) {
    return invalid_argument("topology file " + path + ": " + why);
  };
  const Status is_file = open_regular(path).status();
  if (!is_file.ok()) return wrong(is_file.message());
  std::ifstream in(path, std::ios::binary);
  std::string text(plan::kMaxTopologyBytes + 1, '\0');
  in.read(text.data(), std::ssize(text));
  text.resize(static_cast<std::size_t>(in.gcount()));
  if (in.bad()) return wrong(std::strerror(errno));
  if (text.size() > plan::kMaxTopologyBytes) {
    return wrong("it is longer than " + std::to_string(plan::kMaxTopologyBytes) + " bytes");
  }
  Result<std::string> read = plan::topology_of_text(text);
  if (!read.ok()) return wrong(read.status().message());
  return read;
}

}  // namespace stormo::train
