#include <cli/failure.h>

#include <fmt/format.h>

#include <cli/commands.h>

namespace stormo::cli {

int fail(std::string_view command, const Status& why) {
  fmt::print(stderr, "stormo {}: {}\n", command, why.message());
  if (why.code() == Code::kInterrupted) return kExitInterrupted;
  const bool usage = why.code() == Code::kInvalidArgument || why.code() == Code::kNotFound;
  return usage ? kExitUsage : kExitFailed;
}

int exit_code_of(std::string_view command, const Status& done) {
  return done.ok() ? kExitOk : fail(command, done);
}

int exit_code_of(std::string_view command, const Result<bool>& right) {
  if (!right.ok()) return fail(command, right.status());
  return *right ? kExitOk : kExitFailed;
}

}  // namespace stormo::cli
