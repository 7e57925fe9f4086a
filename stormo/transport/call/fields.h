#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <stormo/base/status.h>

namespace stormo::transport {

// A struct that is sent lists its fields once, in its own namespace:
//
//   void fields(auto& visit, Like<Attachment> auto& a) {
//     visit("attachment", a.worker, within(a.part, 0, 7), at_most(100, a.name));
//   }
//
// encode() and decode() follow from the list. Integers have their own width, little-endian, enums
// and bools 8 bits, floating-point numbers 64. Texts and lists begin with their length in 32 bits.
// Decoding is strict: kCorrupt for bytes that are missing or left, and for values out of bounds. A
// length is compared with its limit and with the remaining bytes before it is used.

static_assert(std::endian::native == std::endian::little, "integers are sent as they are");

template <class T, class S>
concept Like = std::same_as<std::remove_const_t<T>, S>;

template <class T, class L>
struct Within {
  T& value;
  L first, last;
};
/// An integer or enum with limits. Every enum needs them.
template <class T>
Within<T, std::remove_const_t<T>> within(T& value,
                                         std::type_identity_t<std::remove_const_t<T>> first,
                                         std::type_identity_t<std::remove_const_t<T>> last) {
  return {value, first, last};
}

template <class T>
struct AtMost {
  std::size_t most;
  T& value;
};
/// A text or list, and its greatest length.
template <class T>
AtMost<T> at_most(std::size_t most, T& value) {
  return {most, value};
}

template <class T>
struct Rest {
  T& value;
};
/// A std::string_view as the last field of all: what is left of the message, without a length.
template <class T>
Rest<T> rest(T& value) {
  return {value};
}

/// Appends fields to a message.
class FieldWriter {
 public:
  template <class... T>
  void operator()(std::string_view /*name*/, const T&... fields) {
    (put(fields), ...);
  }
  void require(bool, std::string_view) {}

  template <class T>
  void put(const T& value) {
    if constexpr (std::is_convertible_v<const T&, std::string_view>) {
      const std::string_view bytes = value;
      put(static_cast<std::uint32_t>(bytes.size()));
      out.append(bytes);
    } else if constexpr (std::is_floating_point_v<T>) {
      put(std::bit_cast<std::uint64_t>(static_cast<double>(value)));
    } else if constexpr (std::is_enum_v<T> || std::is_same_v<T, bool>) {
      out.push_back(static_cast<char>(value));
    } else if constexpr (std::is_integral_v<T>) {
      out.append(reinterpret_cast<const char*>(&value), sizeof value);
    } else {
      fields(*this, value);
    }
  }
  template <class T, class L>
  void put(const Within<T, L>& field) {
    put(field.value);
  }
  template <class T>
  void put(const AtMost<T>& field) {
    put(field.value);
  }
  template <class T>
  void put(const Rest<T>& field) {
    out.append(field.value);
  }
  template <class T>
  void put(const std::vector<T>& list) {
    put(static_cast<std::uint32_t>(list.size()));
    for (const T& value : list) put(value);
  }
  template <class T, std::size_t kSize>
  void put(const std::array<T, kSize>& values) {
    for (const T& value : values) put(value);
  }
  template <class T>
  void put(const std::optional<T>& value) {
    put(value.has_value());
    if (value) put(*value);
  }
  template <class A, class B>
  void put(const std::pair<A, B>& both) {
    put(both.first);
    put(both.second);
  }
  template <class R, class P>
  void put(const std::chrono::duration<R, P>& time) {
    put(time.count());
  }

  std::string out;
};

/// Reads what FieldWriter has written, from untrusted input. After the first failure all fields
/// stay as they are.
class FieldReader {
 public:
  explicit FieldReader(std::string_view in) : rest_(in) {}

  template <class... T>
  void operator()(std::string_view name, T&&... fields) {
    if (name_.empty()) name_ = name;
    (get(fields), ...);
  }
  /// What no sender sends is refused, for this reason.
  void require(bool is_possible, std::string_view why) {
    if (good_ && !is_possible) fail(std::string(why));
  }
  /// OK if all was read, and nothing is left.
  Status end(std::string_view protocol) const;

  void get(std::string_view& bytes) { get(at_most(rest_.size(), bytes)); }
  void get(std::string& bytes) { get(at_most(rest_.size(), bytes)); }
  void get(double& value) {
    std::uint64_t word = 0;
    get(word);
    value = std::bit_cast<double>(word);
  }
  void get(bool& value) {
    std::uint8_t number = value ? 1 : 0;
    get(within(number, std::uint8_t{0}, std::uint8_t{1}));
    value = number == 1;
  }
  template <std::integral T>
  void get(T& value) {
    if (const std::string_view bytes = take(sizeof value); good_) {
      std::memcpy(&value, bytes.data(), sizeof value);
    }
  }
  template <class T, class L>
  void get(Within<T, L> field) {
    std::conditional_t<std::is_enum_v<T>, std::uint8_t, T> number{};
    get(number);
    const auto in = static_cast<std::int64_t>(number);
    check(in, static_cast<std::int64_t>(field.first), static_cast<std::int64_t>(field.last));
    if (good_) field.value = static_cast<T>(number);
  }
  template <class T>
  void get(AtMost<T> text) {
    const std::uint32_t length = get_length(text.most);
    if (const std::string_view bytes = take(length); good_) text.value = bytes;
  }
  template <class T>
  void get(AtMost<std::vector<T>> list) {
    std::uint32_t left = get_length(list.most);
    // not more than what is there can be
    if (good_) list.value.reserve(std::min<std::size_t>(left, rest_.size() / sizeof(T) + 1));
    for (; left > 0 && good_; --left) {
      get(list.value.emplace_back());
    }
  }
  template <class T>
  void get(Rest<T> field) {
    field.value = take(rest_.size());
  }
  template <class T>
  void get(std::vector<T>& list) {
    get(at_most(rest_.size(), list));
  }
  template <class T, std::size_t kSize>
  void get(std::array<T, kSize>& values) {
    for (T& value : values) get(value);
  }
  template <class T>
  void get(std::optional<T>& value) {
    bool has_value = false;
    get(has_value);
    if (has_value) get(value.emplace());
  }
  template <class A, class B>
  void get(std::pair<A, B>& both) {
    get(both.first);
    get(both.second);
  }
  template <class R, class P>
  void get(std::chrono::duration<R, P>& time) {
    R count{};
    get(count);
    time = std::chrono::duration<R, P>(count);
  }
  template <class T>
    requires std::is_class_v<T>
  void get(T& value) {
    fields(*this, value);
  }

 private:
  std::string_view take(std::size_t bytes);
  std::uint32_t get_length(std::size_t most);
  void check(std::int64_t value, std::int64_t first, std::int64_t last);
  void fail(std::string why = {});

  std::string_view rest_;
  std::string_view name_;  // of the message
  bool good_ = true;
  std::string why_;
};

template <class T>
std::string encode(const T& value) {
  FieldWriter out;
  out.put(value);
  return std::move(out.out);
}

/// `protocol`: named in errors.
template <class T>
Result<T> decode(std::string_view protocol, std::string_view bytes) {
  FieldReader in(bytes);
  T value{};
  in.get(value);
  STORMO_RETURN_IF_ERROR(in.end(protocol));
  return value;
}

}  // namespace stormo::transport
