#include <stormo/comm/job/join_record.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include <stormo/base/printable.h>
#include <stormo/base/text.h>

namespace stormo::comm {
namespace {

/// Takes the text up to a line's end, or all of it.
std::string_view take_line(std::string_view& text) {
  const std::string_view line = text.substr(0, text.find('\n'));
  text.remove_prefix(std::min(text.size(), line.size() + 1));
  return line;
}

}  // namespace

std::string JoinRecord::to_text() const {
  return fmt::format("{}\n{}\n{} {} {} {} {}\n{}\n{}\n{}", version,
                     printable_line(process.identity), cross_rank, local_rank, local_size,
                     checksum ? 1 : 0, process.pid, process.space, host_ticket, selection);
}

Result<JoinRecord> parse_join_record(std::string_view text) {
  JoinRecord record;
  record.version = take_line(text);
  record.process.identity = take_line(text);
  std::array<int, 5> numbers{};
  const std::vector<std::string_view> words = split(take_line(text), ' ');
  bool right = words.size() == numbers.size();
  for (std::size_t i = 0; right && i < numbers.size(); ++i) {
    const auto number = number_in<int>(words[i]);
    right = number.has_value();
    numbers[i] = number.value_or(0);
  }
  if (!right) {
    return Status(Code::kCorrupt, fmt::format("a rank joins as {}, and says no more that this "
                                              "version of stormo understands: install one version "
                                              "on all hosts",
                                              printable_line(record.process.identity)));
  }
  record.cross_rank = numbers[0];
  record.local_rank = numbers[1];
  record.local_size = numbers[2];
  record.checksum = numbers[3] != 0;
  record.process.pid = numbers[4];
  record.process.space = take_line(text);
  record.host_ticket = take_line(text);
  record.selection = text;
  return record;
}

std::string version_in(std::string_view text) { return printable_line(take_line(text)); }

}  // namespace stormo::comm
