#pragma once

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace stormo {

/// The kinds of failures of the whole system.
enum class Code : int {
  kOk = 0,
  kInvalidArgument,   ///< the user's flag, recipe, file or call is wrong; the message says the
                      ///< remedy
  kNotFound,          ///< a file, key or name that must exist does not
  kDeadlineExceeded,  ///< the caller's deadline passed
  kPeerLost,          ///< a rank or the store died, froze or became unreachable
  kCancelled,         ///< the group had already failed; the message is the first cause
  kMismatch,          ///< ranks called different operations
  kRefused,           ///< authentication or version check failed
  kCorrupt,           ///< bytes that fail a check (checksum, magic, bound)
  kIo,                ///< the operating system refused (disk, socket, memory file)
  kExhausted,         ///< out of a bounded resource (arena, ports, descriptors)
  kBadPlan,           ///< a Schedule or StepPlan that verify rejects
  kInterrupted,       ///< SIGINT or SIGTERM, after saving
  kException,         ///< the program threw; the message has the exception's type and text
};

/// The name of a code as it is printed, e.g. "peer lost".
std::string_view to_string(Code code);

/// Result of a call that can fail at run time. OK is a null pointer: cheap to return and test.
/// Copyable; may be passed between threads.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message);

  bool ok() const { return rep_ == nullptr; }
  explicit operator bool() const { return ok(); }
  Code code() const { return rep_ ? rep_->code : Code::kOk; }
  /// Context and cause, outermost context first: "step 4: all_reduce #9: recv from 1: peer lost".
  const std::string& message() const;
  /// The same failure with more context in front of its message. OK stays OK.
  Status within(std::string_view context) const;
  /// "peer lost: step 4: ..." for people; "ok" when ok.
  std::string to_string() const;

  friend bool operator==(const Status& a, const Status& b) {
    return a.code() == b.code() && a.message() == b.message();
  }

 private:
  struct Rep {
    Code code;
    std::string message;
  };
  std::shared_ptr<const Rep> rep_;
};

inline Status ok_status() { return {}; }
Status invalid_argument(std::string message);
Status io_error(std::string message);
/// kIo with strerror(errno) appended: "open x: No such file or directory".
Status errno_error(std::string what);

/// The one exception type of the library, thrown only by layers that use libtorch and by the public
/// C++ API; contains the Status. Exceptions do not pass from thread to thread.
class Error : public std::runtime_error {
 public:
  explicit Error(Status status)
      : std::runtime_error(status.to_string()), status_(std::move(status)) {}
  const Status& status() const { return status_; }

 private:
  Status status_;
};

/// Throws Error when `status` is a failure.
inline void throw_if_error(const Status& status) {
  if (!status.ok()) throw Error(status);
}

/// A value or the Status that explains its absence.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}
  Result(Status status) : status_(std::move(status)) {}

  bool ok() const { return value_.has_value(); }
  explicit operator bool() const { return ok(); }
  const Status& status() const { return status_; }
  T& value() & { return *value_; }
  const T& value() const& { return *value_; }
  T&& value() && { return std::move(*value_); }
  T& operator*() & { return *value_; }
  const T& operator*() const& { return *value_; }
  T&& operator*() && { return std::move(*value_); }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }
  /// The value, or throws Error.
  T take_or_throw() && {
    throw_if_error(status_);
    return std::move(*value_);
  }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace stormo

#define STORMO_CONCAT_INNER(a, b) a##b
#define STORMO_CONCAT(a, b) STORMO_CONCAT_INNER(a, b)

/// Returns the failure of `expr` (a Status) from the enclosing function.
#define STORMO_RETURN_IF_ERROR(expr)                 \
  do {                                               \
    ::stormo::Status stormo_status_ = (expr);        \
    if (!stormo_status_.ok()) return stormo_status_; \
  } while (false)

/// `STORMO_ASSIGN_OR_RETURN(auto x, f())`: x = *f(), or returns f()'s failure.
#define STORMO_ASSIGN_OR_RETURN(lhs, expr) \
  STORMO_ASSIGN_OR_RETURN_IMPL(STORMO_CONCAT(stormo_result_, __LINE__), lhs, expr)
#define STORMO_ASSIGN_OR_RETURN_IMPL(tmp, lhs, expr) \
  auto tmp = (expr);                                 \
  if (!tmp.ok()) return tmp.status();                \
  lhs = std::move(tmp).value()
