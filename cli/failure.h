#pragma once

#include <string_view>

#include <stormo/base/status.h>

namespace stormo::cli {

/// Says on standard error why a command failed ("stormo bench: why"), and returns its exit code.
/// `command`: its words, for instance "bench step".
int fail(std::string_view command, const Status& why);

}  // namespace stormo::cli
