#include <stormo/checkpoint/pytorch/pickle_writer.h>

#include <bit>

namespace stormo::checkpoint {

void PickleWriter::number(std::uint64_t value, std::size_t width) {
  for (std::size_t i = 0; i < width; ++i) text_ += static_cast<char>(value >> (8 * i));
}

void PickleWriter::integer(std::int64_t value) {
  text_ += "\x8a\x08";
  number(static_cast<std::uint64_t>(value), 8);
}

void PickleWriter::real(double value) {
  text_ += 'G';
  const auto bits = std::bit_cast<std::uint64_t>(value);
  for (int i = 7; i >= 0; --i) text_ += static_cast<char>(bits >> (8 * i));  // big-endian
}

void PickleWriter::text(std::string_view value) {
  text_ += 'X';
  number(value.size(), 4);
  text_ += value;
}

void PickleWriter::class_name(std::string_view module, std::string_view name) {
  text_ += 'c';
  text_ += module;
  text_ += '\n';
  text_ += name;
  text_ += '\n';
}

void PickleWriter::integers(std::span<const std::int64_t> values) {
  mark();
  for (const std::int64_t v : values) integer(v);
  tuple();
}

void PickleWriter::sizes(std::span<const std::int64_t> sizes) {
  class_name("torch", "Size");
  mark();
  integers(sizes);
  tuple();
  make_object();
}

}  // namespace stormo::checkpoint
