#pragma once

#include <string>

#include <stormo/base/status.h>
#include <stormo/plan/schedule.h>

namespace stormo::cli {

/// Pictures of the rounds: ranks are columns, time runs down, an arrow for what one rank sends
/// another in a round; reductions solid and red, copies dashed and blue. kInvalidArgument for a
/// schedule of more than 4,096 arrows, which nobody could read.
Result<std::string> dot_picture(const plan::Schedule& s);
Result<std::string> svg_picture(const plan::Schedule& s);

}  // namespace stormo::cli
