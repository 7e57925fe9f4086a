#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace stormo::checkpoint {

/// Writes a pickle of Python's protocol 2. Values are written in the order of Python's stack
/// machine: what an object is made of comes before make_object().
class PickleWriter {
 public:
  PickleWriter() : text_("\x80\x02") {}

  void none() { text_ += 'N'; }
  void boolean(bool value) { text_ += value ? '\x88' : '\x89'; }
  void integer(std::int64_t value);
  void real(double value);
  void text(std::string_view value);
  void class_name(std::string_view module, std::string_view name);
  void empty_dict() { text_ += '}'; }
  void empty_list() { text_ += ']'; }
  void empty_tuple() { text_ += ')'; }
  void mark() { text_ += '('; }
  /// What comes after the mark, as a tuple, into the list, or as keys and values into the dict
  /// before it.
  void tuple() { text_ += 't'; }
  void append_all() { text_ += 'e'; }
  void set_all() { text_ += 'u'; }
  /// Of a class or function and a tuple of arguments; new_object() does not initialise it.
  void make_object() { text_ += 'R'; }
  void new_object() { text_ += '\x81'; }
  /// Sets the state of the object before it.
  void set_state() { text_ += 'b'; }
  /// A reference to what lies elsewhere, as the value before says.
  void persistent() { text_ += 'Q'; }
  /// torch.Size
  void sizes(std::span<const std::int64_t> sizes);
  /// A tuple of integers.
  void integers(std::span<const std::int64_t> values);

  std::string finish() && { return std::move(text_) + '.'; }

 private:
  void number(std::uint64_t value, std::size_t width);

  std::string text_;
};

}  // namespace stormo::checkpoint
