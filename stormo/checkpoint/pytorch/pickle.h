#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/status.h>

namespace stormo::checkpoint {

/// A value of a pickle. Nothing is ever executed: a class or function is its name, an object is a
/// record of what it was made of.
struct PickleValue {
  enum class Kind : std::uint8_t {
    kNone,
    kBool,        ///< integer: 0 or 1
    kInteger,     ///< integer
    kFloat,       ///< real
    kText,        ///< text, UTF-8 as a rule
    kTuple,       ///< items
    kList,        ///< items
    kDict,        ///< items: key, value, key, value, ...
    kClass,       ///< integer: its index among the names; see Pickle::class_name()
    kObject,      ///< items: the class or function, the tuple of its arguments, perhaps its state
    kPersistent,  ///< items: one, which says what lies elsewhere
  } kind = Kind::kNone;
  std::int64_t integer = 0;
  double real = 0;
  std::string_view text{};
  std::vector<std::uint32_t> items{};  ///< numbers of values in the pickle
};

/// A pickle of Python's protocols 2 to 5 as values. It knows the opcodes that the files of
/// torch.distributed.checkpoint and torch.save have. Values can contain themselves; who reads them
/// goes to a fixed depth.
class Pickle {
 public:
  /// `bytes` are borrowed. kCorrupt names the position and what is wrong. The worst of
  /// inputs need 70 bytes of memory for each of theirs.
  static Result<Pickle> parse(std::string_view bytes);

  const PickleValue& root() const { return values_[root_]; }
  const PickleValue& at(std::uint32_t index) const { return values_[index]; }
  /// Item i of a tuple, list, dict or object; null beyond the last one.
  const PickleValue* item(const PickleValue& of, std::size_t i) const {
    return i < of.items.size() ? &values_[of.items[i]] : nullptr;
  }
  /// "torch.Size" of a class; of an object that of what made it; empty for other values.
  std::string_view class_name(const PickleValue& value) const;
  /// The value of a text key of a dict; null if there is none.
  const PickleValue* find(const PickleValue& dict, std::string_view key) const;
  /// An attribute of an object whose state is a dict; null if there is none.
  const PickleValue* attribute(const PickleValue& object, std::string_view name) const;

 private:
  friend class PickleMachine;
  Pickle() = default;

  std::vector<PickleValue> values_;
  std::vector<std::string> names_;
  std::uint32_t root_ = 0;
};

}  // namespace stormo::checkpoint
