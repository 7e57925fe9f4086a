#pragma once

#include <functional>
#include <string>
#include <vector>

#include <stormo/base/status.h>

namespace stormo::train {

/// Waits until all processes of at_once() are here.
using Meet = std::function<void()>;

/// Runs `work` in `ranks` forks of this process at the same time, on the cores that ranks of a job
/// would be bound to, and returns the text of each. The first failure ends all of them; so does the
/// end of this process. Blocks.
///
/// Call it in a process that has no other threads and has computed no backward: libtorch could not
/// compute one in a fork of it.
Result<std::vector<std::string>> at_once(
    int ranks, const std::function<Result<std::string>(int rank, const Meet&)>& work);

}  // namespace stormo::train
