#include <stormo/base/status.h>

#include <cerrno>
#include <cstring>

#include <stormo/base/printable.h>

namespace stormo {

std::string_view to_string(Code code) {
  switch (code) {
    case Code::kOk: return "ok";
    case Code::kInvalidArgument: return "invalid argument";
    case Code::kNotFound: return "not found";
    case Code::kDeadlineExceeded: return "deadline exceeded";
    case Code::kPeerLost: return "peer lost";
    case Code::kCancelled: return "cancelled";
    case Code::kMismatch: return "mismatched operation";
    case Code::kRefused: return "refused";
    case Code::kCorrupt: return "corrupt data";
    case Code::kIo: return "i/o error";
    case Code::kExhausted: return "resource exhausted";
    case Code::kBadPlan: return "bad plan";
    case Code::kInterrupted: return "interrupted";
    case Code::kException: return "exception";
  }
  return "unknown";
}

// Messages quote names and texts of others.
Status::Status(Code code, std::string message)
    : rep_(std::make_shared<const Rep>(Rep{code, printable(message)})) {}

const std::string& Status::message() const {
  static const std::string empty;
  return rep_ ? rep_->message : empty;
}

Status Status::within(std::string_view context) const {
  if (ok()) return *this;
  return {rep_->code, std::string(context) + ": " + rep_->message};
}

std::string Status::to_string() const {
  if (ok()) return "ok";
  return std::string(stormo::to_string(rep_->code)) + ": " + rep_->message;
}

Status invalid_argument(std::string message) {
  return {Code::kInvalidArgument, std::move(message)};
}
Status io_error(std::string message) { return {Code::kIo, std::move(message)}; }
Status errno_error(std::string what) {
  const int saved = errno;
  // Limits of the user have a remedy.
  const char* limit = saved == EFBIG ? " (ulimit -f)" : saved == EMFILE ? " (ulimit -n)" : "";
  return {Code::kIo, std::move(what) + ": " + std::strerror(saved) + limit};
}

}  // namespace stormo
