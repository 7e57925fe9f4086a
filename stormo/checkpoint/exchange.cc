#include <stormo/checkpoint/exchange.h>

#include <cstdint>
#include <numeric>

namespace stormo::checkpoint {
namespace {

comm::Buffer bytes_of(std::string& text) {
  return {text.data(), static_cast<std::int64_t>(text.size()), DType::kUInt8};
}

}  // namespace

Status broadcast_text(comm::Communicator& world, std::string& text, Rank root) {
  auto length = static_cast<std::int64_t>(text.size());
  STORMO_RETURN_IF_ERROR(world.broadcast(comm::Buffer{&length, 1, DType::kInt64}, root));
  text.resize(static_cast<std::size_t>(length));
  return length == 0 ? ok_status() : world.broadcast(bytes_of(text), root);
}

Result<std::vector<std::string>> gather_texts(comm::Communicator& world, const std::string& text) {
  auto length = static_cast<std::int64_t>(text.size());
  std::vector<std::int64_t> lengths(static_cast<std::size_t>(world.size()));
  STORMO_RETURN_IF_ERROR(world.all_gather(comm::Buffer{&length, 1, DType::kInt64}, lengths));
  const bool root = world.rank() == 0;
  const std::int64_t sum = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  std::string mine = text, all(root ? static_cast<std::size_t>(sum) : 0, '\0');
  if (sum > 0) STORMO_RETURN_IF_ERROR(world.gather(bytes_of(mine), bytes_of(all), 0, lengths));
  std::vector<std::string> texts;
  std::size_t at = 0;
  for (std::size_t r = 0; root && r < lengths.size(); ++r) {
    texts.push_back(all.substr(at, static_cast<std::size_t>(lengths[r])));
    at += texts.back().size();
  }
  return texts;
}

std::string encode_outcome(const Result<std::string>& outcome) {
  if (outcome.ok()) return '\0' + *outcome;
  return static_cast<char>(outcome.status().code()) + outcome.status().message();
}

Result<std::string> decode_outcome(const std::string& text) {
  if (text.empty() || text[0] < 0 || text[0] > static_cast<char>(Code::kException)) {
    return Status(Code::kCorrupt, "an outcome that cannot be read");
  }
  if (text[0] == 0) return text.substr(1);
  return Status(static_cast<Code>(text[0]), text.substr(1));
}

Result<std::string> broadcast_outcome(comm::Communicator& world, const Result<std::string>& mine) {
  std::string text = encode_outcome(mine);
  STORMO_RETURN_IF_ERROR(broadcast_text(world, text));
  return decode_outcome(text);
}

}  // namespace stormo::checkpoint
