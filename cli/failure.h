#pragma once

#include <string_view>

#include <stormo/base/status.h>

namespace stormo::cli {

/// Says on standard error why a command failed ("stormo bench: why"), and returns its exit code:
/// arguments that are wrong, or name what is not there, are wrong usage.
/// `command`: its words, for instance "bench step".
int fail(std::string_view command, const Status& why);
/// The exit code of a command that is done, perhaps with results that are not right; as fail()
/// where it is not.
int exit_code_of(std::string_view command, const Status& done);
int exit_code_of(std::string_view command, const Result<bool>& right);

}  // namespace stormo::cli
