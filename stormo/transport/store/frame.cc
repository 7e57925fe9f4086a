#include <stormo/transport/store/frame.h>

#include <fmt/format.h>

#include <cstdint>

#include <stormo/transport/store/wire.h>

namespace stormo::transport {

std::string frame(std::string_view head, std::string_view rest) {
  std::string out;
  out.reserve(kFrameLengthBytes + head.size() + rest.size());
  put(out, static_cast<std::uint32_t>(head.size() + rest.size()));
  out += head;
  out += rest;
  return out;
}

Result<std::optional<std::string_view>> FrameSplitter::next() {
  const std::string_view rest = std::string_view(buffer_).substr(begin_);
  std::uint32_t length = 0;
  const bool has_length = WireReader(rest).read(length);
  if (has_length && length > most_) {
    return Status(Code::kCorrupt, fmt::format("{} protocol: frame of {} B, at most {} are "
                                              "allowed",
                                              protocol_, length, most_));
  }
  if (!has_length || rest.size() < kFrameLengthBytes + length) {
    buffer_.erase(0, begin_);
    begin_ = 0;
    return std::optional<std::string_view>();
  }
  begin_ += kFrameLengthBytes + length;
  return std::optional(rest.substr(kFrameLengthBytes, length));
}

}  // namespace stormo::transport
