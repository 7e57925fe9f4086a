#include <cli/failure.h>

#include <fmt/format.h>

#include <cli/commands.h>

namespace stormo::cli {

int fail(std::string_view command, const Status& why) {
  fmt::print(stderr, "stormo {}: {}\n", command, why.message());
  if (why.code() == Code::kInterrupted) return kExitInterrupted;
  return why.code() == Code::kInvalidArgument ? kExitUsage : kExitFailed;
}

}  // namespace stormo::cli
