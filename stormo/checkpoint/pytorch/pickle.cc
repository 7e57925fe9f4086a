#include <stormo/checkpoint/pytorch/pickle.h>

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

namespace stormo::checkpoint {

using Kind = PickleValue::Kind;
using Index = std::uint32_t;

/// Python's unpickler without Python: a stack of values, marks on it, and a memo.
class PickleMachine {
 public:
  explicit PickleMachine(std::string_view bytes) : bytes_(bytes) {
    none_ = add({.kind = Kind::kNone});
    false_ = add({.kind = Kind::kBool});
    true_ = add({.kind = Kind::kBool, .integer = 1});
    empty_tuple_ = add({.kind = Kind::kTuple});
  }

  Result<Pickle> run() {
    while (!done_) {
      const std::size_t begin = at_;
      const std::uint64_t opcode = number(1);
      if (fault_.empty()) execute(static_cast<unsigned char>(opcode));
      if (!fault_.empty()) {
        return Status(Code::kCorrupt, fmt::format("a pickle that is no file of PyTorch's, or is "
                                                  "damaged: byte {}: {}",
                                                  begin, fault_));
      }
    }
    return std::move(pickle_);
  }

 private:
  void fail(std::string why) {
    if (fault_.empty()) fault_ = std::move(why);
  }

  Index add(PickleValue value) {
    pickle_.values_.push_back(std::move(value));
    return static_cast<Index>(pickle_.values_.size() - 1);
  }

  PickleValue& value(Index i) { return pickle_.values_[i]; }

  /// A number of so many bytes, little-endian.
  std::uint64_t number(std::size_t width) {
    if (bytes_.size() - at_ < width) {
      fail("it ends too early");
      return 0;
    }
    std::uint64_t out = 0;
    for (std::size_t i = 0; i < width; ++i) {
      out |= std::uint64_t{static_cast<unsigned char>(bytes_[at_ + i])} << (8 * i);
    }
    at_ += width;
    return out;
  }

  std::string_view take(std::uint64_t length) {
    if (length > bytes_.size() - at_) {
      fail("a text is longer than the file");
      return {};
    }
    const std::string_view out = bytes_.substr(at_, static_cast<std::size_t>(length));
    at_ += static_cast<std::size_t>(length);
    return out;
  }

  std::string_view line() {
    const std::size_t end = bytes_.find('\n', at_);
    if (end == std::string_view::npos) {
      fail("a name without an end");
      return {};
    }
    const std::string_view out = bytes_.substr(at_, end - at_);
    at_ = end + 1;
    return out;
  }

  void push(Index index) { stack_.push_back(index); }
  void push(PickleValue value) { push(add(std::move(value))); }
  void push_integer(std::int64_t n) { push({.kind = Kind::kInteger, .integer = n}); }
  void push_text(std::string_view text) { push({.kind = Kind::kText, .text = text}); }

  /// What the topmost mark protects is not to be had.
  Index pop() {
    if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) {
      fail("there is nothing on the stack");
      return none_;
    }
    const Index top = stack_.back();
    stack_.pop_back();
    return top;
  }

  std::vector<Index> pop_to_mark() {
    if (marks_.empty()) {
      fail("there is no mark");
      return {};
    }
    const auto first = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    std::vector<Index> out(first, stack_.end());
    stack_.erase(first, stack_.end());
    marks_.pop_back();
    return out;
  }

  void push_tuple(std::vector<Index> items) {
    if (items.empty()) return push(empty_tuple_);
    push({.kind = Kind::kTuple, .items = std::move(items)});
  }

  void push_tuple(std::size_t count) {
    std::vector<Index> items(count);
    for (std::size_t i = count; i-- > 0;) items[i] = pop();
    push_tuple(std::move(items));
  }

  void append(const std::vector<Index>& items, Kind to) {
    const Index target = pop();
    push(target);
    if (!fault_.empty()) return;
    if (value(target).kind != to) return fail("items for what holds none");
    if (to == Kind::kDict && items.size() % 2 != 0) return fail("a key without a value");
    auto& all = value(target).items;
    all.insert(all.end(), items.begin(), items.end());
  }

  void push_class(std::string_view module, std::string_view name) {
    auto& names = pickle_.names_;
    names.push_back(std::string(module) + "." + std::string(name));
    push({.kind = Kind::kClass, .integer = static_cast<std::int64_t>(names.size() - 1)});
  }

  void name_from_stack() {
    const Index name = pop(), module = pop();
    if (value(name).kind != Kind::kText || value(module).kind != Kind::kText) {
      return fail("a class whose name is no text");
    }
    push_class(value(module).text, value(name).text);
  }

  void make_object() {
    const Index arguments = pop(), maker = pop();
    if (value(maker).kind != Kind::kClass || value(arguments).kind != Kind::kTuple) {
      return fail("an object that no class makes");
    }
    push({.kind = Kind::kObject, .items = {maker, arguments}});
  }

  void build() {
    const Index state = pop(), object = pop();
    if (value(object).kind != Kind::kObject || value(object).items.size() != 2) {
      return fail("a state for what takes none");
    }
    value(object).items.push_back(state);
    push(object);
  }

  void remember(std::uint64_t slot) {
    if (slot >= bytes_.size()) return fail("a place of the memo that no such file needs");
    const Index top = pop();
    push(top);
    if (slot >= memo_.size()) memo_.resize(static_cast<std::size_t>(slot) + 1, kForgotten);
    memo_[static_cast<std::size_t>(slot)] = top;
  }

  void recall(std::uint64_t slot) {
    if (slot >= memo_.size() || memo_[static_cast<std::size_t>(slot)] == kForgotten) {
      return fail("a place of the memo that is empty");
    }
    push(memo_[static_cast<std::size_t>(slot)]);
  }

  /// In two's complement, of 1 to 8 bytes; none is 0.
  void push_long() {
    const std::uint64_t width = number(1);
    if (width > 8) return fail("an integer of more than 64 bits");
    std::uint64_t bits = number(static_cast<std::size_t>(width));
    const bool negative = width > 0 && width < 8 && (bits >> (8 * width - 1)) != 0;
    if (negative) bits |= ~std::uint64_t{0} << (8 * width);
    push_integer(static_cast<std::int64_t>(bits));
  }

  void push_real() {
    std::uint64_t bits = 0;
    for (int i = 0; i < 8; ++i) bits = bits << 8 | number(1);  // big-endian
    push({.kind = Kind::kFloat, .real = std::bit_cast<double>(bits)});
  }

  void stop() {
    pickle_.root_ = pop();
    if (fault_.empty() && (!stack_.empty() || !marks_.empty())) fail("more than one value");
    done_ = true;
  }

  void execute(unsigned char opcode) {
    if (!execute_value(opcode) && !execute_structure(opcode)) {
      fail(fmt::format("opcode {:#04x} ('{}') is in no such file", opcode,
                       opcode > 32 && opcode < 127 ? static_cast<char>(opcode) : '?'));
    }
  }

  bool execute_value(unsigned char opcode) {
    switch (opcode) {
      case 'N': push(none_); return true;
      case 0x88: push(true_); return true;
      case 0x89: push(false_); return true;
      case ')': push(empty_tuple_); return true;
      case '}': push({.kind = Kind::kDict}); return true;
      case ']': push({.kind = Kind::kList}); return true;
      case 'K': push_integer(static_cast<std::int64_t>(number(1))); return true;
      case 'M': push_integer(static_cast<std::int64_t>(number(2))); return true;
      case 'J': push_integer(static_cast<std::int32_t>(number(4))); return true;
      case 0x8a: push_long(); return true;
      case 'G': push_real(); return true;
      case 0x8c: push_text(take(number(1))); return true;
      case 'X': push_text(take(number(4))); return true;
      case 0x8d: push_text(take(number(8))); return true;
      default: return false;
    }
  }

  bool execute_structure(unsigned char opcode) {
    switch (opcode) {
      case 0x80:
        if (const std::uint64_t protocol = number(1); protocol < 2 || protocol > 5) {
          fail(fmt::format("protocol {} is not one of 2 to 5", protocol));
        }
        return true;
      case 0x95: number(8); return true;  // the length of a frame, which only helps to read ahead
      case '(': marks_.push_back(stack_.size()); return true;
      case 't': push_tuple(pop_to_mark()); return true;
      case 0x85: push_tuple(1); return true;
      case 0x86: push_tuple(2); return true;
      case 0x87: push_tuple(3); return true;
      case 'a': append({pop()}, Kind::kList); return true;
      case 'e': append(pop_to_mark(), Kind::kList); return true;
      case 's': {
        const Index item = pop(), key = pop();
        append({key, item}, Kind::kDict);
        return true;
      }
      case 'u': append(pop_to_mark(), Kind::kDict); return true;
      case 'c': {
        const std::string_view module = line();
        push_class(module, line());
        return true;
      }
      case 0x93: name_from_stack(); return true;
      case 'R':
      case 0x81: make_object(); return true;
      case 'b': build(); return true;
      case 'Q': push({.kind = Kind::kPersistent, .items = {pop()}}); return true;
      case 0x94: remember(memo_.size()); return true;
      case 'q': remember(number(1)); return true;
      case 'r': remember(number(4)); return true;
      case 'h': recall(number(1)); return true;
      case 'j': recall(number(4)); return true;
      case '.': stop(); return true;
      default: return false;
    }
  }

  static constexpr Index kForgotten = std::numeric_limits<Index>::max();

  const std::string_view bytes_;
  std::size_t at_ = 0;
  Pickle pickle_;
  std::vector<Index> stack_;
  std::vector<std::size_t> marks_;
  std::vector<Index> memo_;
  Index none_ = 0, false_ = 0, true_ = 0, empty_tuple_ = 0;
  std::string fault_;
  bool done_ = false;
};

Result<Pickle> Pickle::parse(std::string_view bytes) {
  if (bytes.size() >= std::numeric_limits<Index>::max() / 2) {
    return Status(Code::kCorrupt, "a pickle of more than 2 GiB");
  }
  return PickleMachine(bytes).run();
}

std::string_view Pickle::class_name(const PickleValue& value) const {
  if (value.kind == Kind::kClass) return names_[static_cast<std::size_t>(value.integer)];
  if (value.kind == Kind::kObject) return class_name(values_[value.items[0]]);
  return {};
}

const PickleValue* Pickle::find(const PickleValue& dict, std::string_view key) const {
  if (dict.kind != Kind::kDict) return nullptr;
  for (std::size_t i = 0; i < dict.items.size(); i += 2) {
    const PickleValue& name = values_[dict.items[i]];
    if (name.kind == Kind::kText && name.text == key) return &values_[dict.items[i + 1]];
  }
  return nullptr;
}

const PickleValue* Pickle::attribute(const PickleValue& object, std::string_view name) const {
  if (object.kind != Kind::kObject || object.items.size() != 3) return nullptr;
  return find(values_[object.items[2]], name);
}

}  // namespace stormo::checkpoint
