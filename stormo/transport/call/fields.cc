#include <stormo/transport/call/fields.h>

#include <fmt/format.h>

namespace stormo::transport {

Status FieldReader::end(std::string_view protocol) const {
  if (good_ && rest_.empty()) return {};
  return Status(Code::kCorrupt,
                fmt::format("{} protocol: malformed {}{}{}", protocol,
                            name_.empty() ? "message" : name_, why_.empty() ? "" : ": ", why_));
}

std::string_view FieldReader::take(std::size_t bytes) {
  if (bytes > rest_.size()) fail();
  if (!good_) return {};
  const std::string_view out = rest_.substr(0, bytes);
  rest_.remove_prefix(bytes);
  return out;
}

std::uint32_t FieldReader::get_length(std::size_t most) {
  std::uint32_t length = 0;
  get(length);
  if (length > most) fail();
  return good_ ? length : 0;
}

void FieldReader::check(std::int64_t value, std::int64_t first, std::int64_t last) {
  if (!good_ || (value >= first && value <= last)) return;
  fail(fmt::format("{} is not one of {} to {}", value, first, last));
}

void FieldReader::fail(std::string why) {
  good_ = false;
  why_ = std::move(why);
}

}  // namespace stormo::transport
